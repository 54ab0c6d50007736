"""Test that a task of the records source has what it reads now in memory, not its segment."""

import json
import os
import pickle
import subprocess
import sys

import pytest

from services.api.ids import TopicIdPartition
from tests.harness.tier import a_topic
from tests.spark.made_logs import copied, plain
from tests.spark.records_reads import ServedTier, source

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]

SEGMENT_MIB = 128
RECORDS_PER_BATCH = 32
LIMIT_MIB = 80
"""Connections, a window of the stream, two batches of Arrow and what the allocators keep: less
than the segment alone."""


def test_a_large_segment_is_read_in_little_memory(in_process: ServedTier) -> None:
    (tp,) = a_topic("large")
    records = _fill(in_process, tp)
    made = source(in_process, subscribe="large", splitBytes=2 * SEGMENT_MIB * 1024 * 1024)
    reader = made.reader(made.schema())
    (task,) = reader.partitions()
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.records_worker"],
        input=pickle.dumps((reader, task)),
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert answer["records"] == records
    assert answer["grown_mib"] < LIMIT_MIB, answer


def _fill(tier: ServedTier, tp: TopicIdPartition) -> int:
    """Copy one segment of batches of about a MiB; return the number of its records."""
    value = os.urandom(1024 * 1024 // RECORDS_PER_BATCH)
    batch = plain(0, [value] * RECORDS_PER_BATCH)
    # The checksum does not cover the base offset.
    batches = [
        (number * RECORDS_PER_BATCH).to_bytes(8, "big") + batch[8:] for number in range(SEGMENT_MIB)
    ]
    copied(tier, tp, 0, batches)
    return SEGMENT_MIB * RECORDS_PER_BATCH
