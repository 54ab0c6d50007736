"""Run sweeps on Spark: retention and the removal of deleted partitions, off the brokers.

Metadata comes from RLMM and bytes go through RSM, by their Protocols: no job has credentials of the
database or the bucket.
"""

import os

import services  # noqa: F401  # before gRPC: it decides what gRPC does at a fork

# Before gRPC is imported, by any job or executor: it would print lines of its own beside our error.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
