"""Test local retention by RLM, step by step: RSM on files, RLMM on PostgreSQL, without gRPC.

Whatever leaves the disk must be read as before, byte for byte.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import FetchError
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.rlm.kafka_log.partition_dir import list_segments
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.retention.local_files import LogDirLocks
from services.rlm.retention.local_task import LocalRetention, LocalRetentionTask
from tests.harness.eventually import eventually
from tests.harness.owned_log import (
    ALL,
    AT_ONCE_LOCALLY,
    NOTHING_STAYS,
    MakesRlm,
    delete_locally,
    here,
    owner,
    put,
    retain,
)
from tests.harness.published import growth
from tests.harness.retained_log import DEADLINE_S, HOUR_MS, Changed, hourly_log, take_turns
from tests.harness.ship_stack import Stack, bytes_of, description, fetch, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, write_log_dir

END = 65
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    return hourly_log(log_dir)


@pytest.fixture
def written(files: PartitionFiles) -> bytes:
    """Return all records as the broker wrote them."""
    return bytes_of(files.path)


@pytest.fixture
def locks(log_dir: Path, files: PartitionFiles) -> Iterator[LogDirLocks]:
    with closing(LogDirLocks([log_dir])) as held:
        yield held


@pytest.fixture
def make_rlm(stack: Stack, log_dir: Path, locks: LogDirLocks) -> MakesRlm:
    return owner(stack, log_dir, locks)


@pytest.fixture
def rlm(stack: Stack, make_rlm: MakesRlm, written: bytes) -> BrokerRemoteLogManager:
    """Provide an RLM that has copied all rolled segments, without settings."""
    made = make_rlm()
    take_turns(made)
    assert stack.ranges() == [(base, base + 9) for base in ALL[:-1]]
    return made


def assert_all_readable(rlm: BrokerRemoteLogManager, written: bytes) -> None:
    assert read(rlm, 0) == written
    for offset in range(END):
        part = fetch(rlm, offset, max_bytes=1)[0]
        assert (part.error, part.log_start_offset) == (FetchError.NONE, 0)
        first = int.from_bytes(part.record_batches[:8], "big")
        assert first <= offset < first + 5


def test_tiered_segments_leave_the_disk_and_stay_readable(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    written: bytes,
) -> None:
    epochs = (files.path / "leader-epoch-checkpoint").read_bytes()
    put(stack, NOTHING_STAYS)
    rolled_bytes = len(written) - files.file(60, ".log").stat().st_size
    prefix = "sediment_rlm_locally_deleted_"
    grown = growth(f"{prefix}segments_total", f"{prefix}bytes_total")
    retain(rlm)
    assert here(files) == [60]
    assert grown() == [len(ALL) - 1, rolled_bytes]
    assert sorted(path.name.partition(".")[2] for path in files.path.glob("0*")) == [
        "index",
        "log",
        "snapshot",
        "timeindex",
    ]
    assert (files.path / "leader-epoch-checkpoint").read_bytes() == epochs
    for reader in (rlm, make_rlm()):
        assert_all_readable(reader, written)
        found = description(reader)
        assert (found.log_start_offset, found.local_log_start_offset) == (0, 60)
        assert found.problems == ()
    take_turns(rlm, rounds=3)
    assert stack.ranges() == [(base, base + 9) for base in ALL[:-1]]
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 0


@pytest.mark.deep
def test_segments_rolled_later_are_copied_and_leave_the_disk(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles, written: bytes
) -> None:
    put(stack, {"local.retention.bytes": "0"})
    retain(rlm)
    files.snapshot(65)
    files.segment(65, [batch(65, 5, leader_epoch=2)])
    retain(rlm)
    assert here(files) == [60, 65]
    take_turns(rlm)
    retain(rlm)
    assert here(files) == [65]
    assert read(rlm, 0) == written + batch(65, 5, leader_epoch=2)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, ALL),
        ({"local.retention.ms": str(3 * HOUR_MS)}, [40, 50, 60]),
        ({"local.retention.ms": str(1000 * HOUR_MS)}, ALL),
        ({"retention.ms": str(3 * HOUR_MS), "sediment.retention.owner": "sweep"}, [40, 50, 60]),
        ({"retention.ms": str(3 * HOUR_MS), "local.retention.ms": "-2"}, [40, 50, 60]),
    ],
)
def test_by_time(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    settings: dict[str, str],
    left: list[int],
) -> None:
    put(stack, settings)
    retain(rlm)
    assert here(files) == left


@pytest.mark.deep
def test_by_size(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles, written: bytes
) -> None:
    kept = sum(files.file(base, ".log").stat().st_size for base in (40, 50, 60))
    put(stack, {"local.retention.bytes": str(kept)})
    retain(rlm)
    assert here(files) == [40, 50, 60]
    assert_all_readable(rlm, written)


def test_segments_stay_from_the_first_uncopied_one(
    stack: Stack, make_rlm: MakesRlm, files: PartitionFiles, written: bytes
) -> None:
    def not_the_third(metadata: RemoteLogSegmentMetadata, data: Any) -> bytes | None:
        if metadata.start_offset == 20:
            raise RetriableRemoteStorageError("away")
        return stack.rsm.copy_log_segment_data(metadata, data)

    rlm = make_rlm(rsm=Changed(stack.rsm, copy_log_segment_data=not_the_third))
    retain(rlm)
    take_turns(rlm)
    put(stack, NOTHING_STAYS)
    for _ in range(3):
        retain(rlm)
    assert here(files) == ALL[2:]
    assert_all_readable(rlm, written)


def test_log_without_any_copy_stays(
    stack: Stack, make_rlm: MakesRlm, files: PartitionFiles
) -> None:
    rlm = make_rlm()
    stack.rlmm.on_partition_leadership_changes([PartitionLeadership(NAME, 2)], [], 7)
    put(stack, NOTHING_STAYS)
    for _ in range(3):
        retain(rlm)
    assert here(files) == ALL


@pytest.mark.parametrize(
    "setting",
    [
        {"sediment.hold": "true"},
        {"sediment.retention.owner": "broker"},
        {"remote.storage.enable": "false"},
    ],
)
def test_if_settings_forbid_it_nothing_goes(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles, setting: dict[str, str]
) -> None:
    put(stack, NOTHING_STAYS, setting)
    retain(rlm)
    assert here(files) == ALL
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == [60]


def test_if_the_directory_is_the_brokers_nothing_goes(
    stack: Stack, log_dir: Path, rlm: BrokerRemoteLogManager, files: PartitionFiles
) -> None:
    put(stack, NOTHING_STAYS)
    of_a_broker = BrokerRemoteLogManager([log_dir], stack.rsm, stack.rlmm, AT_ONCE_LOCALLY)
    take_turns(of_a_broker)
    retain(of_a_broker)
    assert here(files) == ALL


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error("on purpose")

    return fail


@pytest.mark.parametrize(
    "call",
    [
        "topic_config",
        "list_remote_log_segments",
        "partition_state",
        "list_partitions",
        "remote_log_segment_metadata",
        "fetch_log_segment",
    ],
)
def test_while_a_service_is_away_nothing_goes_and_the_pass_says_so(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    put(stack, NOTHING_STAYS)
    away = {call: raising(RetriableRemoteStorageError)}
    if call == "fetch_log_segment":
        lame = make_rlm(rsm=Changed(stack.rsm, **away))
    else:
        lame = make_rlm(rlmm=Changed(stack.rlmm, **away))
    grown = growth("sediment_rlm_local_retention_failures_total")
    retain(lame)
    assert here(files) == ALL
    assert "local retention: on purpose" in caplog.text
    assert grown() == [1]


@pytest.mark.deep
def test_the_store_goes_away_half_way(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    written: bytes,
) -> None:
    left = iter(range(3))

    def three_times(*args: Any) -> Any:
        if next(left, None) is None:
            raise RetriableRemoteStorageError("away")
        return stack.rsm.fetch_log_segment(*args)

    put(stack, NOTHING_STAYS)
    retain(make_rlm(rsm=Changed(stack.rsm, fetch_log_segment=three_times)))
    assert here(files) == ALL[3:]
    assert_all_readable(rlm, written)


def test_segment_missing_in_the_store_stays_on_disk(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stack.object_of(stack.segments()[2]).unlink()
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == ALL[2:]
    assert "(20 to 29) is not in the store" in caplog.text


def test_other_records_under_the_same_epoch_and_offsets_stay(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log began again on an empty disk."""
    files.segment(20, [batch(20, 5, payload=b"another"), batch(25, 5)])
    put(stack, {"local.retention.bytes": "0"})
    retain(rlm)
    assert here(files) == ALL[2:]
    assert "begins with another batch at offset 20" in caplog.text


def test_tiered_segment_of_another_epoch_does_not_count(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles
) -> None:
    """From 30 on this log was truncated and written again, in epoch 5."""
    files.epochs((0, 0), (5, 30))
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == ALL[3:]


def test_segment_contradicted_by_a_newer_report_does_not_count(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles
) -> None:
    """This log is the overruled one: RLMM has epoch 5 from 30 on, this log still epoch 2."""
    report = stack.rlmm.partition_state(NAME).value.report
    assert report is not None
    entries = report.lineage.entries
    newer = replace(entries[1], leader_epoch=5)
    lineage = replace(report.lineage, entries=(entries[0], newer))
    (outcome,) = stack.rlmm.report_partition_state(
        [replace(report, leader_epoch=5, report_number=1, lineage=lineage)]
    )
    assert not isinstance(outcome, Exception)
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == ALL[3:]


def test_without_leader_epochs_nothing_goes(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (files.path / "leader-epoch-checkpoint").unlink()
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == ALL
    assert "leader-epoch-checkpoint" in caplog.text


@pytest.mark.deep
def test_a_segment_that_is_being_deleted_from_the_tier_stays_until_it_is_copied_again(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles, written: bytes
) -> None:
    segment = stack.segments()[2]
    stack.rlmm.update_remote_log_segment_metadata(
        RemoteLogSegmentMetadataUpdate(
            segment.remote_log_segment_id,
            segment.event_timestamp_ms,
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            segment.broker_id,
        )
    )
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == ALL[2:]
    take_turns(rlm, rounds=2)
    retain(rlm)
    assert here(files) == [60]
    assert_all_readable(rlm, written)


def test_of_a_partition_that_is_being_deleted_nothing_goes(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles
) -> None:
    put(stack, NOTHING_STAYS)
    marked = RemotePartitionDeleteMetadata(NAME, MARKED, 1, 7)
    stack.rlmm.put_remote_partition_delete_metadata(marked)
    retain(rlm)
    assert here(files) == ALL
    stack.rlmm.undelete_partition(NAME)
    retain(rlm)
    assert here(files) == [60]


def test_below_the_log_start_all_goes_copied_or_not(
    stack: Stack, make_rlm: MakesRlm, files: PartitionFiles
) -> None:
    """Copying is disabled: the local log is kept as long as the whole, and nothing is copied."""
    rlm = make_rlm()
    stack.rlmm.on_partition_leadership_changes([PartitionLeadership(NAME, 2)], [], 7)
    put(stack, {"remote.log.copy.disable": "true", "retention.ms": "1"})
    take_turns(rlm)
    retain(rlm)
    assert here(files) == ALL
    stack.rlmm.raise_log_start_offset(NAME, 25)
    retain(rlm)
    assert here(files) == ALL[2:]
    assert read(rlm, 25) != FetchError.OFFSET_OUT_OF_RANGE


@pytest.mark.deep
def test_a_log_that_ends_below_the_log_start_is_left_alone(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another log, on an empty disk: every segment of it lies below the tier's log start."""
    put(stack, NOTHING_STAYS)
    stack.rlmm.raise_log_start_offset(NAME, 65)
    for base in ALL[3:]:
        files.file(base, ".log").unlink()
    for _ in range(2):
        retain(rlm)
    assert here(files) == [0, 10, 20]
    assert "below the tier's log start" in caplog.text


def test_segments_without_a_following_producer_snapshot_stay(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for offset in (40, 50, 60):
        files.file(offset, ".snapshot").unlink()
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == [30, 40, 50, 60]
    retain(rlm)
    assert here(files) == [30, 40, 50, 60]
    assert "producer snapshot" in caplog.text


def test_a_folder_of_another_topic_id_at_the_same_path_is_left_alone(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles, tmp_path: Path
) -> None:
    put(stack, NOTHING_STAYS)
    other = hourly_log(write_log_dir(tmp_path / "others"), replace(NAME, topic_id=UUID(int=5)))
    files.path.rename(tmp_path / "away")
    other.path.rename(files.path)
    retain(rlm)
    assert here(files) == ALL


def test_a_pass_does_so_many_and_comes_again(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    locks: LogDirLocks,
) -> None:
    put(stack, NOTHING_STAYS)
    (partition,) = rlm.led_partitions()
    shared, stopping = LocalRetention(stack.rsm, stack.rlmm, locks), threading.Event()
    task = LocalRetentionTask(partition, shared, stopping, max_segments=4)
    first = task.run()
    assert (first.deleted_segments, first.more, here(files)) == (4, True, ALL[4:])
    second = task.run()
    assert (second.deleted_segments, second.more, here(files)) == (2, False, [60])
    assert first.deleted_bytes + second.deleted_bytes == sum(
        segment.segment_size_in_bytes for segment in stack.segments()
    )


def test_one_fetch_outlives_every_segment_that_goes_before_it_comes_there(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    written: bytes,
) -> None:
    delete_locally(list_segments(files.path)[0])

    def next_one_goes(segment: RemoteLogSegmentMetadata, *positions: int) -> Iterator[bytes]:
        local = list_segments(files.path)
        if local[0].base_offset == segment.end_offset + 1 and local[0].is_rolled:
            delete_locally(local[0])
        return stack.rsm.fetch_log_segment(segment, *positions)

    reader = make_rlm(rsm=Changed(stack.rsm, fetch_log_segment=next_one_goes))
    assert read(reader, 0) == written
    assert here(files) == [60]


@pytest.mark.deep
def test_fetches_meanwhile_miss_nothing(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles, written: bytes
) -> None:
    stop = threading.Event()
    wrong: list[object] = []
    reads = 0

    def read_on() -> None:
        nonlocal reads
        while not stop.is_set():
            offset = 0
            data = b""
            while offset < END:
                found = read(rlm, offset)
                if not isinstance(found, bytes) or not found:
                    wrong.append((offset, found))
                    return
                data += found
                offset = _next_offset(found)
            if data != written:
                wrong.append(len(data))
            reads += 1

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    for base in ALL[1:]:
        left = sum(files.file(b, ".log").stat().st_size for b in ALL if b >= base)
        put(stack, {"local.retention.bytes": str(left)})
        before = reads
        retain(rlm)
        assert here(files) == [b for b in ALL if b >= base]
        eventually(partial(_has_read_on, lambda: reads, before, wrong), deadline_ms=60_000)
    stop.set()
    for reader in readers:
        reader.join(DEADLINE_S)
    assert wrong == []


def _has_read_on(reads: Callable[[], int], before: int, wrong: list[object]) -> bool:
    return reads() >= before + 3 or bool(wrong)


def _next_offset(batches: bytes) -> int:
    at = following = 0
    while at < len(batches):
        base = int.from_bytes(batches[at : at + 8], "big")
        following = base + int.from_bytes(batches[at + 23 : at + 27], "big") + 1
        at += 12 + int.from_bytes(batches[at + 8 : at + 12], "big")
    return following
