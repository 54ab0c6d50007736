"""Serve a read-only page about the tier to a browser."""
