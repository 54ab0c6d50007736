"""Sediment's services. Who may import whom: docs/understand/architecture.md, enforced by a test."""

import os

# Before gRPC is imported. PySpark starts Java by fork() and exec(), and gRPC's handlers of a fork,
# which are for children that go on with gRPC, would hang or kill that child (grpc issue 43055).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
