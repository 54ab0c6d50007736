"""Compare the store with the metadata, and verify what is stored, on Spark."""
