"""What RLMM and RSM have of a partition, followed as it changes."""
