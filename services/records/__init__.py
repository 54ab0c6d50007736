"""Read what is in a segment's files: batches, records, indexes."""
