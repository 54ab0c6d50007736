"""Wait for the executors of a cluster, so that a job counts the cores that it will have."""

import time

from pyspark import SparkConf
from pyspark.sql import SparkSession

from spark_jobs.sweeps.progress import said_every
from spark_jobs.sweeps.sweep import Say

WAIT_S = 60.0
"""How long a job waits for cores that it was promised."""

NO_EXECUTOR_S = 30.0
"""The interval of lines about missing executors."""

_NO_EXECUTOR = (
    "the cluster has given no executor for {:.0f} s; check for free cores and memory at its "
    "master, or request less with --conf spark.executor.cores=N and --conf "
    "spark.executor.memory=SIZE"
)

_SETTLED_S = 3.0
"""If no number was promised: no executor came for so long."""

_POLL_S = 0.1


def wait_for_executors(spark: SparkSession, say: Say) -> None:
    """Wait until the executors of a cluster have registered, for at most WAIT_S.

    They register one after the other when Spark has started, and `defaultParallelism` counts only
    those that have. Without an executor at all it waits as any job of Spark's does, and says so.
    """
    context = spark.sparkContext
    conf = context.getConf()
    if _is_fixed(conf):
        return
    with said_every(NO_EXECUTOR_S, lambda past_s: say(_NO_EXECUTOR.format(past_s))):
        spark.range(1).collect()  # needs an executor
    promised = _promised_cores(conf)
    cores, since_s = context.defaultParallelism, time.monotonic()
    deadline_s = since_s + WAIT_S
    while (now_s := time.monotonic()) < deadline_s:
        if context.defaultParallelism != cores:
            cores, since_s = context.defaultParallelism, now_s
        is_settled = promised is None and now_s - since_s >= _SETTLED_S
        if is_settled or (promised is not None and cores >= promised):
            return
        time.sleep(_POLL_S)


def _is_fixed(conf: SparkConf) -> bool:
    """Return whether waiting would change nothing: one process, or a number set by the user."""
    master = conf.get("spark.master", "")
    is_local = master.startswith("local") and not master.startswith("local-cluster")
    is_dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    return is_local or is_dynamic or conf.contains("spark.default.parallelism")


def _promised_cores(conf: SparkConf) -> int | None:
    """Return how many cores the user requested; None if the options do not say."""
    if conf.contains("spark.cores.max"):
        return int(conf.get("spark.cores.max", "0") or 0)
    if conf.contains("spark.executor.instances"):
        instances = int(conf.get("spark.executor.instances", "0") or 0)
        return instances * int(conf.get("spark.executor.cores", "1") or 1)
    return None
