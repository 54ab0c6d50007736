"""The services as their clients see them: the Protocols of services.api, over gRPC."""
