"""Test what is over a limit of RLM: the limit is named, and nothing is called damaged."""

import os

from services.api.remote_log_manager import FetchError, ProblemKind
from services.records.batches import MAX_BATCH_BYTES
from tests.harness.ship_stack import Stack, description, fetch_once
from tests.unit.rlm.kafka_bytes import PartitionFiles, batch, three_segments


def long_batch(files: PartitionFiles, base_offset: int) -> None:
    """Write a log of one batch whose five records are over the limit and take no room."""
    header = bytearray(batch(base_offset, 5))
    header[8:12] = (MAX_BATCH_BYTES + 1 - 12).to_bytes(4, "big")
    os.truncate(files.segment(base_offset, [bytes(header)]), MAX_BATCH_BYTES + 1)


def test_a_batch_over_the_limit_holds_its_segment_back_by_name(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    long_batch(files, 20)
    files.snapshot(25)
    files.segment(25, [batch(25, 5)])
    report = stack.ship()
    (problem,) = report.partitions[0].problems
    assert (problem.kind, problem.offset) == (ProblemKind.LIMIT_EXCEEDED, 20)
    assert f"over the limit of {MAX_BATCH_BYTES}" in problem.message
    assert stack.ranges() == [(0, 9), (10, 19)]


def test_a_log_goes_on_behind_a_batch_over_the_limit(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    long_batch(files, 20)
    with files.file(20, ".log").open("ab") as log:
        log.write(batch(25, 5))
    rlm = stack.rlm()
    assert description(rlm).log_end_offset == 30
    (part,) = fetch_once(rlm, 20)
    assert part.error is FetchError.UNKNOWN_SERVER_ERROR
    assert f"over the limit of {MAX_BATCH_BYTES}" in part.error_message
