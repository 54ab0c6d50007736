"""Delete expired segments from the tier and from the local log."""
