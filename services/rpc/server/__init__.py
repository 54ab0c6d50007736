"""The server side of gRPC, the same for every service."""
