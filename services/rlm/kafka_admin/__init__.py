"""What a cluster's admin API tells of the partitions of this broker."""
