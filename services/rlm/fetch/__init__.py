"""Serve reads: local segments first, below them the tier."""
