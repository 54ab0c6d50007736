"""The operator's command `sediment`.

Each command has a module of its own and imports what it needs when it runs: `sediment --help` must
not wait for gRPC.
"""
