"""Read and write the metadata of Kafka's own RemoteLogMetadataManager; no network, no state."""
