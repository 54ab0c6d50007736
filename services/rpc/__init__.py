"""All that knows gRPC and belongs to no one service: converters, errors, server, clients."""
