"""Local retention, kept by RLM where it owns the log directories: what the tier has leaves them."""
