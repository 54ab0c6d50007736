"""Reads of metadata: look-ups, listings, scans and watches."""
