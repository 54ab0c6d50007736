"""Rolled segments on their way into the tier."""
