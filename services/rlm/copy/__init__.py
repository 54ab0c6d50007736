"""Copy rolled segments into the tier."""
