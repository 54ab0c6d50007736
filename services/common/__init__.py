"""What every process of ours needs: settings, log, cancellation, retries; no domain, no gRPC."""
