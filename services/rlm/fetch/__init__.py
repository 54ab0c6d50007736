"""Serve reads from local segments, and from the tier below them."""
