"""Delete expired segments from the tier."""
