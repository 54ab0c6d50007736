"""Delete what expired, from the tier and from the local log."""
