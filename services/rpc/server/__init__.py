"""Provide the server side of gRPC, the same for every service."""
