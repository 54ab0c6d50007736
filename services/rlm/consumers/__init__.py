"""Serve RLM's reads to ordinary consumers of Kafka, over Kafka's own protocol."""
