"""Provide the basics of every process: settings, log, cancellation, retries; no domain, no gRPC."""
