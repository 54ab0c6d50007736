"""Reads: local segments first, below them the tier."""
