"""Measure broker_copy: a broker copies segments through the plugin, against the bare client.

From the moment a topic is tiered until RLMM has the last rolled segment as finished, so with the
wait for Kafka's task and all metadata.
"""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.bare_client import BareClient
from benchmarks.broker_catch_up import CASES
from benchmarks.brokers import BROKER, JVM_OPTIONS, SEGMENT_BYTES, produce
from benchmarks.deployment import deployed
from benchmarks.measure import MIB, QUICK, Result, mib_per_s, ratio
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE
from demos.kafka_broker import KafkaBroker, plugin_settings
from demos.kafka_client import Cluster
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.segments import RemoteLogSegmentState
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_broker import plugin_jar

ROUNDS = 2 if QUICK else 5
SEGMENTS = 4
DEADLINE_MS = 300_000
BIG = next(case for case in CASES if case.data == "big")


def run() -> Result:
    with ExitStack() as opened:
        services = opened.enter_context(deployed())
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sediment-")))
        endpoints = services.stack.endpoints
        plugin = plugin_settings(plugin_jar(), endpoints.rsm, endpoints.rlmm)
        broker = KafkaBroker(
            directory / "kafka",
            ensure_kafka_jars(),
            {**BROKER, **plugin},
            jvm_options=JVM_OPTIONS,
        )
        opened.enter_context(broker)
        segment = RandomSegment(directory / "segment.log", SEGMENT_BYTES)
        bare = BareClient(services.s3_client(), services.bucket, services.part_size_bytes)
        threads = bare.best_threads(segment.path)
        topics = [f"copied-{number}" for number in range(ROUNDS + 1)]
        for name in topics:
            # One more, whose active segment stays.
            produce(replace(BIG, data=name, segments=SEGMENTS + 1), {"disk": broker})
        waiting = iter(topics)

        def copy() -> float:
            return _copy(broker, services.rlmm, f"{next(waiting)}-local")

        copy()
        return ratio(
            "broker_copy",
            ROUNDS,
            ("a broker with the plugin, MiB/s", copy),
            (
                f"bare client, {threads} thread(s), MiB/s",
                lambda: mib_per_s(SEGMENT_BYTES, lambda: bare.upload(segment.path, threads)),
            ),
            {**services.pids, "kafka": broker.pid},
            {
                "segment_bytes": SEGMENT_BYTES,
                "segments": SEGMENTS,
                "partitions": 1,
                "store": STORE,
                "task_interval_ms": BROKER["remote.log.manager.task.interval.ms"],
            },
        )


def _copy(broker: KafkaBroker, rlmm: RemoteLogMetadataManager, topic: str) -> float:
    began = time.perf_counter()
    Cluster(broker.bootstrap_servers).configure(topic, **{"remote_storage_enable": "true"})
    size_bytes = eventually(lambda: _copied_bytes(rlmm, topic), DEADLINE_MS, poll_ms=20)
    return size_bytes / MIB / (time.perf_counter() - began)


def _copied_bytes(rlmm: RemoteLogMetadataManager, topic: str) -> int:
    """Return the bytes of the topic's segments once all rolled ones are finished, else 0."""
    rows = [
        row
        for summary in all_partitions(rlmm, topic=topic)
        for row in all_segments(rlmm, summary.topic_id_partition)
    ]
    finished = [r for r in rows if r.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    is_done = len(finished) >= SEGMENTS
    return sum(row.segment_size_in_bytes for row in finished) if is_done else 0
