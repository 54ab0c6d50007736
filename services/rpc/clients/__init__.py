"""The services as their callers see them: the Protocols of services.api, over gRPC."""
