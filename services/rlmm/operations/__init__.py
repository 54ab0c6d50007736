"""What operators keep beside the metadata: anomalies, runs of tools, maintenance."""
