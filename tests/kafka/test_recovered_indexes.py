"""One walk over a segment's batches builds what a broker's recovery of the segment writes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.lineage import checkpoint_text, parse_checkpoint
from services.api.segments import SegmentLeaderEpoch
from services.records.batches import FileWindow, walk_batches
from services.records.index_files import OffsetIndex, first_offset_since
from services.records.segment_indexes import IndexBuilder
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LEADER_EPOCH_CHECKPOINT, list_segments
from services.rlm.kafka_log.transactions import transactions_at
from tests.data.kafka_log_content import (
    AUDIT,
    MIXED,
    ORDERS,
    PAYMENTS,
    TELEMETRY,
    produce_audit,
    produce_mixed,
    produce_orders,
    produce_payments,
    produce_telemetry,
)
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster

pytestmark = pytest.mark.kafka

SUFFIXES = (".index", ".timeindex", ".txnindex")
KAFKAS_INTERVAL = {"index.interval.bytes": "4096"}
TOPICS = (ORDERS, PAYMENTS, TELEMETRY, MIXED, AUDIT)


def test_a_walk_builds_the_files_that_a_recovery_writes(tmp_path: Path) -> None:
    with kafka_broker(tmp_path / "broker") as broker:
        made = (replace(each, config={**each.config, **KAFKAS_INTERVAL}) for each in TOPICS)
        Cluster(broker.bootstrap_servers).create(*made)
        for number in range(2):
            if number:
                broker.restart()
            cluster = Cluster(broker.bootstrap_servers)
            produce_orders(cluster, number)
            produce_payments(cluster, number)
            produce_telemetry(cluster, number)
            produce_mixed(cluster, number)
            produce_audit(cluster, number)
    folders = [found.path for found in find_partitions([broker.log_dir]).partitions.values()]
    walked = {folder: walk(folder) for folder in folders}
    before = {folder: epochs_of(folder) for folder in folders}
    lost = {folder: index_files(folder) for folder in folders}
    for folder in folders:
        remove_what_recovery_writes(folder)
    with broker:
        pass
    assert {folder: index_files(folder) for folder in folders} == {
        folder: {name: data for name, data in files.items() if data}
        for folder, (files, _) in walked.items()
    }
    for folder, (files, built) in walked.items():
        assert look_ups(folder, files) == look_ups(folder, lost[folder]) == look_ups(folder, {})
        # The restarted broker added an epoch without records.
        assert epochs_of(folder)[:-1] == tuple(built)
        assert before[folder][: len(built)] == tuple(built)
    written = [name for files, _ in walked.values() for name, data in files.items() if data]
    assert all(any(name.endswith(suffix) for name in written) for suffix in SUFFIXES)


def walk(folder: Path) -> tuple[dict[str, bytes], list[SegmentLeaderEpoch]]:
    """Build the index files of a folder's segments by name, and the leader epochs of all."""
    files, epochs = dict[str, bytes](), list[SegmentLeaderEpoch]()
    segments = list_segments(folder)
    for segment in segments:
        size_bytes = segment.log_path.stat().st_size
        start = segment.base_offset
        built = IndexBuilder(start, transactions_at(segments, start))
        with FileWindow(segment.log_path) as window:
            for each in walk_batches(window, 0, size_bytes, start, verify=True):
                built.observe(each)
        files[segment.file(".index").name] = built.offset_index()
        files[segment.file(".timeindex").name] = built.time_index()
        files[segment.file(".txnindex").name] = built.transaction_index()
        known = epochs[-1].leader_epoch if epochs else -1
        epochs += [each for each in built.leader_epochs if each.leader_epoch > known]
    return files, epochs


def look_ups(folder: Path, files: Mapping[str, bytes]) -> list[tuple[str, int, int | None]]:
    """Return the batch that each look-up by offset and by time begins at, by its base offset."""
    found = list[tuple[str, int, int | None]]()
    for segment in list_segments(folder):
        with FileWindow(segment.log_path) as window:
            size_bytes, base = segment.log_path.stat().st_size, segment.base_offset
            batches = list(walk_batches(window, 0, size_bytes, base, verify=False))
        if not batches:
            continue
        name, last = segment.log_path.stem, batches[-1].last_offset
        offsets = OffsetIndex(files.get(f"{name}.index", b""), base)
        for offset in range(base, last + 1):
            _, position = offsets.lookup(offset) or (base, 0)
            there = (b for b in batches if b.position >= position and b.last_offset >= offset)
            found.append(("offset", offset, next(there).base_offset))
        times = files.get(f"{name}.timeindex", b"")
        for time_ms in {b.max_timestamp_ms + each for b in batches for each in (-1, 0, 1)}:
            first = first_offset_since(times, base, last, time_ms)
            later = (b for b in batches if b.last_offset >= first and b.max_timestamp_ms >= time_ms)
            at = next(later, None)
            found.append(("time", time_ms, None if at is None else at.base_offset))
    return found


def epochs_of(folder: Path) -> tuple[SegmentLeaderEpoch, ...]:
    return parse_checkpoint((folder / LEADER_EPOCH_CHECKPOINT).read_text()).entries


def remove_what_recovery_writes(folder: Path) -> None:
    for suffix in SUFFIXES:
        for path in folder.glob(f"*{suffix}"):
            path.unlink()
    (folder / LEADER_EPOCH_CHECKPOINT).write_text(checkpoint_text(()))


def index_files(folder: Path) -> dict[str, bytes]:
    paths = (path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}"))
    return {path.name: data for path in paths if (data := path.read_bytes())}
