"""Retention, kept by RLM: what expired from the tier is deleted on schedule."""
