"""Delete many small segments: by a retention sweep of either engine, and by a bare multi-delete."""

import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from minio import Minio
from minio.deleteobjects import DeleteObject

from benchmarks.deployment import Deployment
from benchmarks.many_segments import ManySegments, make_segments, store_objects, store_rows
from spark_jobs.options import SweepConfig, SweepOptions
from spark_jobs.sweeps import retention_sweep
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import SweepRun

PARTITIONS = 20
SEGMENTS = int(os.environ.get("BENCH_DELETED_SEGMENTS", "10000"))
NO_PACE = {"RSM_DELETE_RATE_KEYS_PER_S": "1000000"}
"""RSM's setting for a store without a limit; by default it sends what S3 takes for one prefix."""

_KEYS_PER_REQUEST = 1000


def swept(engine_in: Callable[[Path], Engine], services: Deployment, directory: Path) -> float:
    """Delete SEGMENTS expired segments by a sweep without a rate; return segments/s.

    Afterwards a listing must find no object of theirs.

    Args:
        engine_in: returns an engine that keeps its stages in a directory.
    """
    many = _expired_topic(services)
    config = SweepConfig(_options(services, many.topic))
    plan_id = uuid4().hex
    where = directory / plan_id
    where.mkdir()
    this = SweepRun(retention_sweep.JOB, plan_id, where, lambda _: None)
    gc.collect()
    gc.freeze()  # as the command does
    started = time.perf_counter()
    report = retention_sweep.run(engine_in(where), this, config)
    seconds = time.perf_counter() - started
    if report.totals.counts["deleted_segments"] != SEGMENTS:
        raise RuntimeError(f"not all deleted: {report.totals}")
    prefix = f"{many.topic_id.hex}/"
    for left in services.s3_client().list_objects(services.bucket, prefix, recursive=True):
        raise RuntimeError(f"the sweep left an object: {left.object_name}")
    return SEGMENTS / seconds


def multi_deleted(services: Deployment, threads: int) -> float:
    """Delete the objects of SEGMENTS segments by bare requests to the store; return segments/s."""
    client, keys = services.s3_client(), make_segments("bare", 1, SEGMENTS).keys()
    store_objects(client, services.bucket, keys)
    started = time.perf_counter()
    _multi_delete(client, services.bucket, keys, threads)
    return SEGMENTS / (time.perf_counter() - started)


def _expired_topic(services: Deployment) -> ManySegments:
    """Create a topic all of whose segments are expired."""
    topic = f"swept-{uuid4().hex}"
    many = make_segments(topic, PARTITIONS, SEGMENTS // PARTITIONS)
    store_rows(services.stack.credentials.database_url, many)
    store_objects(services.s3_client(), services.bucket, many.keys())
    settings = {"retention.ms": "1", "sediment.retention.owner": "sweep"}
    services.rlmm.put_topic_config(many.topic_id, settings, now=True)
    return many


def _options(services: Deployment, topic: str) -> SweepOptions:
    endpoints = services.stack.endpoints
    return SweepOptions(
        rsm=endpoints.rsm,
        rlmm=endpoints.rlmm,
        topics=(topic,),
        apply=True,
        max_segments=SEGMENTS,
        segments_per_s=None,
    )


def _multi_delete(client: Minio, bucket: str, keys: list[str], threads: int) -> None:
    def delete(batch: list[str]) -> None:
        for error in client.remove_objects(bucket, [DeleteObject(key) for key in batch]):
            raise RuntimeError(f"cannot delete: {error}")

    batches = [keys[i : i + _KEYS_PER_REQUEST] for i in range(0, len(keys), _KEYS_PER_REQUEST)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(delete, batches))
