"""Metrics of every service process, in Prometheus' own registry."""

from prometheus_client import Histogram

RPC_SECONDS = Histogram(
    "sediment_rpc_seconds",
    "Time of calls served, by method and status.",
    ["method", "code"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
