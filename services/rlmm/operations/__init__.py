"""Serve operators: anomalies, runs of tools, maintenance, the state for a rebuild."""
