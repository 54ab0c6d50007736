"""Ship a log, lose the local copy, read it back: RSM on files, RLMM on PostgreSQL, no wire.

Trouble is made by wrappers round the real managers that fail one call and know nothing else.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import socket
from threading import Event, Semaphore
from typing import Any

import grpc
import pytest

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import (
    InvalidStateTransitionError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.offset_gaps import OffsetGap
from services.api.partition_events import EventQuery
from services.api.partition_queries import all_events
from services.api.partition_removal import remove_partition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    PartitionDescription,
    Problem,
    ProblemKind,
    RecordSource,
    RemoteLogManager,
    all_descriptions,
)
from services.api.remote_storage_manager import LogSegmentData, SegmentChunk
from services.api.retention import Deletion, DeletionReason
from services.api.segment_deletion import Deleter, begin_deletion, finish_deletion
from services.api.segment_queries import all_segments
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.local.postgres import EmbeddedPostgres
from services.rlm.backoff import Backoff
from services.rlm.copying.segment_copy import CopyLimits
from services.rlm.copying.ship import ShipOutcome, ShipReport, ShipSettings, ship
from services.rlm.describe import PageDescriber
from services.rlm.kafka_log.errors import SegmentVanishedError
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.local_log import LocalLog, LocalPartition
from services.rlm.manager import RlmLimits, StaticRemoteLogManager
from services.rlm.partition import new_partition
from services.rlm.reading.fetch_budget import PartitionBudget, RequestBudget
from services.rlm.reading.index_cache import RemoteIndexCache
from services.rlm.reading.partition_fetch import PartitionFetch
from services.rlm.reading.segment_reader import RemoteReadLimits, RemoteSegmentReader
from services.rlm.servicer import RemoteLogManagerServicer
from services.rlmm.database import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rpc.channels import open_channel
from services.rpc.clients.log import RemoteLogManagerClient
from services.rpc.clients.metadata import RemoteLogMetadataManagerClient
from services.rpc.server import Service, start_grpc
from services.rpc.settings import ServiceSettings
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.location import Location
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.parts import PartBuffers
from tests.contract.rlmm.partition_states import lineage, report_of, taken
from tests.contract.rlmm.segments import move, segment
from tests.unit.rlm.kafka_bytes import (
    NAME,
    PartitionFiles,
    batch,
    in_transaction,
    three_segments,
    write_log_dir,
)
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc

BUNDLED = Path(__file__).parents[1] / "data" / "kafka-log"
EVERYTHING = 64 * 1024 * 1024
ONE_TRY = ShipSettings(threads=2, retry_for_s=0.0)
SOME_TRIES = ShipSettings(threads=2, retry_for_s=0.5, backoff=Backoff(initial_s=0.1, max_s=0.1))
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass
class Stack:
    """The two managers, and the folder in which RSM keeps its objects."""

    rlmm: SqlRemoteLogMetadataManager
    rsm: ObjectRemoteStorageManager
    objects: Path

    def ship(self, log_dir: Path, settings: ShipSettings = ONE_TRY) -> ShipReport:
        return ship([log_dir], self.rsm, self.rlmm, settings)

    def rlm(self, *log_dirs: Path) -> StaticRemoteLogManager:
        return StaticRemoteLogManager(log_dirs, self.rsm, self.rlmm)

    def segments(self, name: TopicIdPartition = NAME) -> list[RemoteLogSegmentMetadata]:
        return list(all_segments(self.rlmm, name))

    def ranges(self, name: TopicIdPartition = NAME) -> list[tuple[int, int]]:
        """Of the finished segments; fails if there is any other."""
        found = self.segments(name)
        assert {segment.state for segment in found} <= {FINISHED}
        return [(segment.start_offset, segment.end_offset) for segment in found]

    def object_of(self, segment: RemoteLogSegmentMetadata) -> Path:
        (path,) = self.objects.rglob(f"*{segment.remote_log_segment_id.id.hex}*.log")
        return path

    def keys(self) -> list[Path]:
        return [path for path in self.objects.rglob("*") if path.is_file()]


@contextmanager
def running_stack(database_url: str, objects: Path) -> Iterator[Stack]:
    engine = create_database_engine(database_url)
    objects.mkdir()
    buffers = PartBuffers(4, 8 * 1024 * 1024, 10_000)
    rsm = ObjectRemoteStorageManager(Location(1, FilesystemStorage(objects), ""), buffers, 2)
    yield Stack(SqlRemoteLogMetadataManager(engine), rsm, objects)
    rsm.close()
    engine.dispose()


@pytest.fixture
def stack(database_url: str, tmp_path: Path) -> Iterator[Stack]:
    with running_stack(database_url, tmp_path / "objects") as made:
        yield made


@dataclass
class Shipped:
    """The bundled log, shipped once for all tests that only look."""

    stack: Stack
    log_dir: Path
    before: list[tuple[Path, int]]
    progress: "Counting"
    report: ShipReport


@pytest.fixture(scope="module")
def shipped(
    postgres: EmbeddedPostgres, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shipped]:
    directory = tmp_path_factory.mktemp("shipped")
    log_dir = Path(shutil.copytree(BUNDLED, directory / "logs"))
    url = postgres.create_database("ship_in_process", template=migrated_database)
    with running_stack(url, directory / "objects") as stack:
        before, progress = files_in(log_dir), Counting()
        report = ship([log_dir], stack.rsm, stack.rlmm, ONE_TRY, progress)
        yield Shipped(stack, log_dir, before, progress, report)
    postgres.drop_database("ship_in_process")


def files_in(log_dir: Path) -> list[tuple[Path, int]]:
    return [(path, path.stat().st_mtime_ns) for path in sorted(log_dir.rglob("*"))]


def bundled_name(topic: str, partition: int = 0) -> TopicIdPartition:
    found = find_partitions([BUNDLED]).partitions
    return next(n for n in found if (n.topic, n.partition) == (topic, partition))


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "bundled"))


def fetch(
    rlm: RemoteLogManager,
    offset: int,
    name: TopicIdPartition = NAME,
    max_bytes: int = EVERYTHING,
) -> list[FetchPart]:
    wanted = FetchPartition(name, offset, max_bytes)
    return list(rlm.fetch(FetchRequest((wanted,), EVERYTHING)))


def read(rlm: RemoteLogManager, offset: int, name: TopicIdPartition = NAME) -> bytes | FetchError:
    parts = fetch(rlm, offset, name)
    if parts[0].error is not FetchError.NONE:
        return parts[0].error
    return b"".join(part.record_batches for part in parts)


def description(rlm: StaticRemoteLogManager, topic: str = "t") -> PartitionDescription:
    (found,) = all_descriptions(rlm, [topic])
    return found


def lose_rolled_segments(log_dir: Path) -> None:
    for folder in log_dir.iterdir():
        if folder.is_dir():
            for log in sorted(folder.glob("*.log"))[:-1]:
                for file in folder.glob(f"{log.stem}.*"):
                    file.unlink()


def bytes_of(folder: Path) -> bytes:
    return b"".join(log.read_bytes() for log in sorted(folder.glob("*.log")))


def test_a_real_log_is_shipped_lost_and_read_back_byte_for_byte(
    shipped: Shipped, bundled: Path
) -> None:
    assert shipped.report.outcome is ShipOutcome.DONE
    assert sum(p.copied_segments for p in shipped.report.partitions) == 72
    lose_rolled_segments(bundled)
    rlm = shipped.stack.rlm(bundled)
    for found in all_descriptions(rlm):
        name = found.topic_id_partition
        whole = read(rlm, found.log_start_offset, name)
        assert whole == bytes_of(BUNDLED / f"{name.topic}-{name.partition}")


def test_a_rerun_starts_no_copy(shipped: Shipped) -> None:
    names = [p.topic_id_partition for p in shipped.report.partitions]
    before = {name: shipped.stack.segments(name) for name in names}
    second = shipped.stack.ship(shipped.log_dir)
    assert second.outcome is ShipOutcome.DONE
    assert [p.copied_segments for p in second.partitions] == [0] * 11
    assert [p.present_segments for p in second.partitions] == [
        p.copied_segments for p in shipped.report.partitions
    ]
    assert {name: shipped.stack.segments(name) for name in names} == before


def test_what_is_registered_is_what_kafka_would_register(shipped: Shipped) -> None:
    third = shipped.stack.segments(bundled_name("telemetry"))[2]
    log = BUNDLED / "telemetry-0" / f"{third.start_offset:020}.log"
    assert third.segment_size_in_bytes == log.stat().st_size
    assert third.broker_id == 1
    assert third.broker_leader_epoch == 4
    assert third.txn_idx_empty


def test_every_partition_is_made_known_even_an_empty_one(shipped: Shipped) -> None:
    assert shipped.stack.segments(bundled_name("orders.eu-west", 2)) == []


def test_nothing_is_written_into_the_log_directory(shipped: Shipped) -> None:
    rlm = shipped.stack.rlm(shipped.log_dir)
    for found in all_descriptions(rlm):
        read(rlm, found.log_start_offset, found.topic_id_partition)
    assert files_in(shipped.log_dir) == shipped.before


def test_progress_counts_every_byte_once(shipped: Shipped) -> None:
    copied = sum(p.copied_bytes for p in shipped.report.partitions)
    told = shipped.progress
    assert (told.planned_bytes, told.sent_bytes, told.copied_segments) == (copied, copied, 72)


def test_one_lost_object_makes_exactly_its_offsets_fail(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    stack.object_of(stack.segments()[0]).unlink()
    rlm = stack.rlm(log_dir)
    answers = {offset: read(rlm, offset) for offset in range(26)}
    failed = [offset for offset, answer in answers.items() if isinstance(answer, FetchError)]
    assert failed == list(range(10))
    assert {answers[offset] for offset in failed} == {FetchError.UNKNOWN_SERVER_ERROR}
    (part,) = fetch(rlm, 3)
    assert "offset 3" in part.error_message
    assert str(stack.segments()[0].remote_log_segment_id) in part.error_message


def test_a_fetch_that_meets_a_lost_object_returns_what_comes_before_it(
    stack: Stack, log_dir: Path
) -> None:
    files = three_segments(log_dir)
    first = files.file(0, ".log").read_bytes()
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    stack.object_of(stack.segments()[1]).unlink()
    assert read(stack.rlm(log_dir), 0) == first
    assert read(stack.rlm(log_dir), 10) is FetchError.UNKNOWN_SERVER_ERROR


def test_a_damaged_object_is_a_corrupt_message(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    path = stack.object_of(stack.segments()[0])
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    rlm = stack.rlm(log_dir)
    assert read(rlm, 5) is FetchError.CORRUPT_MESSAGE
    assert read(rlm, 10) != FetchError.CORRUPT_MESSAGE


def test_a_lost_disk_is_served_from_the_tier_alone(shipped: Shipped) -> None:
    rlm = shipped.stack.rlm()
    found = description(rlm, "mixed-codecs")
    assert (found.log_start_offset, found.log_end_offset) == (0, 534)
    assert (found.local_segments, found.remote_segments) == (0, 10)
    whole = bytes_of(BUNDLED / "mixed-codecs-0")
    last = (BUNDLED / "mixed-codecs-0" / f"{534:020}.log").stat().st_size
    assert read(rlm, 0, found.topic_id_partition) == whole[:-last]


def test_epochs_that_the_broker_forgot_are_read_from_the_tier(stack: Stack, log_dir: Path) -> None:
    files = three_segments(log_dir)
    files.epochs((0, 0), (2, 12))
    whole = bytes_of(files.path)
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    files.epochs((2, 20))
    assert read(stack.rlm(log_dir), 0) == whole


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(24, FetchError.NONE), (25, FetchError.NONE), (26, FetchError.OFFSET_OUT_OF_RANGE)],
)
def test_the_log_end_is_the_last_offset_that_may_be_asked_for(
    stack: Stack, log_dir: Path, offset: int, expected: FetchError
) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    assert fetch(stack.rlm(log_dir), offset)[-1].error is expected


def test_below_the_log_start_is_out_of_range(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    lose_rolled_segments(log_dir)
    assert read(stack.rlm(log_dir), 3) is FetchError.OFFSET_OUT_OF_RANGE


def test_an_unknown_partition_is_named(stack: Stack) -> None:
    assert read(stack.rlm(), 0) is FetchError.UNKNOWN_TOPIC_ID


def test_whole_batches_up_to_the_limit_and_at_least_one(stack: Stack, log_dir: Path) -> None:
    files = three_segments(log_dir)
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    rlm = stack.rlm(log_dir)
    size = len(batch(0, 5))
    assert files.path.exists()
    for limit, batches in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (3 * size, 3)):
        (part,) = fetch(rlm, 0, max_bytes=limit)
        assert len(part.record_batches) == batches * size


def test_a_read_in_the_middle_of_a_batch_begins_with_that_batch(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    (part,) = fetch(stack.rlm(log_dir), 7, max_bytes=1)
    assert (part.record_batches, part.source) == (batch(5, 5), RecordSource.REMOTE)


@pytest.mark.parametrize("lost", [True, False])
def test_a_batch_larger_than_a_message_is_cut_and_joins_again(
    stack: Stack, log_dir: Path, lost: bool
) -> None:
    files = PartitionFiles(log_dir)
    large = batch(0, payload=b"x" * 3_000_000)
    files.segment(0, [large, batch(1)])
    files.snapshot(2)
    files.segment(2, [batch(2)])
    stack.ship(log_dir)
    if lost:
        lose_rolled_segments(log_dir)
    parts = fetch(stack.rlm(log_dir), 0, max_bytes=1)
    assert max(len(part.record_batches) for part in parts) <= 1024 * 1024
    assert b"".join(part.record_batches for part in parts) == large


def test_a_request_of_several_partitions_shares_its_limit(stack: Stack, log_dir: Path) -> None:
    second = TopicIdPartition(NAME.topic_id, NAME.topic, 1)
    three_segments(log_dir)
    three_segments(log_dir, second)
    size = len(batch(0, 5))
    wanted = tuple(FetchPartition(name, 0, EVERYTHING) for name in (NAME, second))
    parts = list(stack.rlm(log_dir).fetch(FetchRequest(wanted, 6 * size)))
    assert [(p.topic_id_partition, len(p.record_batches)) for p in parts] == [
        (NAME, 5 * size),
        (second, size),
    ]


def test_a_dead_database_never_slows_local_reads(stack: Stack, log_dir: Path) -> None:
    files = three_segments(log_dir)
    with closing(socket()) as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody_listens.getsockname()[1]}"
        with grpc.insecure_channel(address) as channel:
            dead = RemoteLogMetadataManagerClient(channel, address)
            _check_local_reads_only(stack, log_dir, files, dead)


@pytest.mark.parametrize("hung", ["fetch_log_segment", "remote_log_segment_metadata"])
def test_a_silent_store_or_database_leaves_threads_to_local_reads(
    stack: Stack, log_dir: Path, hung: str
) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    for file in (log_dir / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    hanging = Semaphore(0)
    rsm, rlmm = Hanging(stack.rsm, hung, hanging), Hanging(stack.rlmm, hung, hanging)
    limits = RlmLimits(read=RemoteReadLimits(threads=2, wait_s=0.1))
    rlm = StaticRemoteLogManager([log_dir], rsm, rlmm, limits)
    with served_rlm(rlm, stream_threads=4) as client, ThreadPoolExecutor(5) as pool:
        stuck = [pool.submit(read, client, 0) for _ in range(2)]
        try:
            for _ in stuck:
                assert hanging.acquire(timeout=30.0)
            refused = [pool.submit(read, client, 0) for _ in range(2)]
            assert isinstance(pool.submit(read, client, 10).result(timeout=10.0), bytes)
            for answer in refused:
                assert answer.result(timeout=10.0) is FetchError.TIERED_STORAGE_NOT_AVAILABLE
            assert not any(answer.done() for answer in stuck)
        finally:
            rsm.let_go()
            rlmm.let_go()
        assert all(isinstance(answer.result(timeout=10.0), bytes) for answer in stuck)


@contextmanager
def served_rlm(rlm: StaticRemoteLogManager, stream_threads: int) -> Iterator[RemoteLogManager]:
    name = "tieredstorage.v1.RemoteLogManager"
    servicer = RemoteLogManagerServicer(rlm)
    service = Service(
        "rlm",
        name,
        lambda server: pb_grpc.add_RemoteLogManagerServicer_to_server(servicer, server),
        check=lambda: None,
        close=lambda: None,
    )
    settings = ServiceSettings(stream_threads=stream_threads, drain_timeout_ms=1000)
    with ExitStack() as cleanup:
        address = start_grpc(service, settings, cleanup)
        channel = cleanup.enter_context(open_channel(address))
        yield RemoteLogManagerClient(channel, address)


def test_readers_that_miss_the_same_index_at_once_cause_one_fetch(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    segment = stack.segments()[0]
    fetches = Semaphore(0)
    rsm = Hanging(stack.rsm, "fetch_index", fetches)
    cache = RemoteIndexCache(rsm, 1024 * 1024)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.offset_index, segment)
        assert fetches.acquire(timeout=30.0)
        second = pool.submit(cache.offset_index, segment)
        another = fetches.acquire(timeout=0.2)
        rsm.let_go()
        assert not another
        assert first.result(timeout=30.0) is second.result(timeout=30.0)
    assert cache.offset_index(segment) is first.result()
    assert not fetches.acquire(blocking=False)


class Outdated(LocalPartition):
    """Always shows what there was when it was first looked at."""

    looks = 0
    first: LocalLog | None = None

    def look(self) -> LocalLog | None:
        self.looks += 1
        self.first = self.first or super().look()
        return self.first


def test_a_read_whose_segments_vanish_again_and_again_ends(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    local = Outdated(find_partitions([log_dir]).partitions[NAME])
    local.look()
    lose_rolled_segments(log_dir)
    partition = new_partition(NAME, local, stack.rsm, stack.rlmm)
    cache = RemoteIndexCache(stack.rsm, 1024 * 1024)
    remote = RemoteSegmentReader(stack.rsm, stack.rlmm, cache, RemoteReadLimits())
    fetch_of_one = PartitionFetch(partition, remote, 0)
    fetch_of_one.look()
    budget = PartitionBudget(RequestBudget(EVERYTHING), EVERYTHING)
    with pytest.raises(SegmentVanishedError):
        list(fetch_of_one.batches(budget))
    assert local.looks == 2 + 3


def test_the_log_start_is_told_only_where_the_tier_was_looked_at(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    for file in (log_dir / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    rlm = stack.rlm(log_dir)
    assert fetch(rlm, 10)[0].log_start_offset == -1
    assert fetch(rlm, 5)[0].log_start_offset == 0
    assert fetch(rlm, 10)[0].log_start_offset == 0


def _check_local_reads_only(
    stack: Stack, log_dir: Path, files: PartitionFiles, dead: RemoteLogMetadataManagerClient
) -> None:
    rlm = StaticRemoteLogManager([log_dir], stack.rsm, dead)
    assert read(rlm, 0) == bytes_of(files.path)
    lose_rolled_segments(log_dir)
    assert read(rlm, 3) is FetchError.TIERED_STORAGE_NOT_AVAILABLE


def test_a_dead_database_is_not_asked_about_what_is_still_to_come(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    rlm = StaticRemoteLogManager([log_dir], stack.rsm, FailingRlmm(stack.rlmm))
    assert read(rlm, 25) == b""
    assert read(rlm, 26) is FetchError.OFFSET_OUT_OF_RANGE


def test_a_segment_of_unknown_size_is_an_error_and_never_skipped(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    rlm = StaticRemoteLogManager([log_dir], stack.rsm, SizesUnknown(stack.rlmm))
    assert read(rlm, 0) is FetchError.UNKNOWN_SERVER_ERROR


def lose_before_copy(files: PartitionFiles, base: int) -> None:
    """The broker deletes all before `base`; there are five offsets rolled, then an active one."""
    for path in files.path.glob(f"{'[0-9]' * 20}.*"):
        path.unlink()
    files.snapshot(base)
    files.segment(base, [batch(base, 5)])
    files.snapshot(base + 5)
    files.segment(base + 5, [batch(base + 5)])


@pytest.fixture
def lost(stack: Stack, log_dir: Path) -> PartitionFiles:
    """Offsets 0 to 9 are in the tier, 10 to 19 are lost, 20 to 24 are rolled."""
    files = PartitionFiles(log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [batch(10, 10)])
    assert stack.ship(log_dir).outcome is ShipOutcome.DONE
    lose_before_copy(files, 20)
    return files


def test_a_range_that_was_deleted_before_it_was_copied_is_named_and_what_follows_is_shipped(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    report = stack.ship(log_dir)
    (partition,) = report.partitions
    (problem,) = partition.problems
    assert (problem.kind, problem.path) == (ProblemKind.LOST_BEFORE_COPY, str(lost.path))
    assert (problem.offset, problem.held_segments) == (10, 0)
    assert "10 to 19" in problem.message
    assert problem.message.endswith("; recorded as a gap")
    assert report.outcome is ShipOutcome.PARTIAL
    assert (partition.copied_segments, partition.held_segments) == (1, 0)
    assert (partition.recorded, partition.known_gaps) == ((problem,), ())
    assert stack.ranges() == [(0, 9), (20, 24)]


def test_what_was_lost_is_recorded_once_and_a_known_gap_from_then_on(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    stack.ship(log_dir)
    assert stack.rlmm.partition_state(NAME).value.gaps == (OffsetGap(10, 19),)
    for _ in range(2):
        report = stack.ship(log_dir)
        (partition,) = report.partitions
        assert (report.outcome, partition.problems) == (ShipOutcome.DONE, ())
        assert (partition.recorded, partition.known_gaps) == ((), ((10, 19),))
    (event,) = [e for e in all_events(stack.rlmm, EventQuery(NAME)) if e.kind == "GAP"]
    assert (event.broker_id, event.broker_leader_epoch, event.repeat_count) == (7, 0, 0)


def test_a_loss_that_grows_is_found_anew(stack: Stack, log_dir: Path, lost: PartitionFiles) -> None:
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("away"))
    ship([log_dir], rsm, stack.rlmm, ONE_TRY)
    lose_before_copy(lost, 25)
    (partition,) = stack.ship(log_dir).partitions
    assert [p.message for p in partition.recorded] == [
        "offsets 10 to 24 were deleted by the broker before they were copied; recorded as a gap"
    ]
    assert stack.rlmm.partition_state(NAME).value.gaps == (OffsetGap(10, 24),)
    assert stack.ship(log_dir).partitions[0].known_gaps == ((10, 24),)


def test_the_copied_prefix_ends_where_something_is_lost_until_it_is_recorded(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    rlmm = GapsRefused(stack.rlmm)
    for copied in (1, 0):
        report = ship([log_dir], stack.rsm, rlmm, ONE_TRY)
        (partition,) = report.partitions
        (problem,) = partition.problems
        assert problem.message.endswith("; not recorded: InvalidStateTransitionError: held")
        assert (report.outcome, partition.recorded) == (ShipOutcome.PARTIAL, ())
        assert partition.copied_segments == copied
    rlm = stack.rlm(log_dir)
    found = description(rlm)
    assert found.copied_through_offset == 9
    assert [(p.kind, p.offset) for p in found.problems] == [(ProblemKind.LOST_BEFORE_COPY, 10)]
    assert description(stack.rlm()).copied_through_offset == 9
    assert read(rlm, 12) is FetchError.OFFSET_OUT_OF_RANGE
    stack.ship(log_dir)
    found = description(rlm)
    assert found.copied_through_offset == 24
    (problem,) = found.problems
    assert (problem.kind, problem.offset, problem.held_segments) == (
        ProblemKind.LOST_BEFORE_COPY,
        10,
        0,
    )
    assert problem.message.startswith("known gap: offsets 10 to 19 ")
    assert description(stack.rlm()).copied_through_offset == 24
    assert read(rlm, 12) is FetchError.OFFSET_OUT_OF_RANGE


def test_what_another_broker_is_copying_is_not_recorded_as_lost_before_its_lease_ends(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    under_way = segment(NAME, 10, 19, broker_id=9)
    stack.rlmm.add_remote_log_segment_metadata(under_way, lease_ms=3_600_000)
    (partition,) = stack.ship(log_dir).partitions
    (problem,) = partition.problems
    assert problem.message.endswith("; not recorded: broker 9 copies offsets 10 to 19")
    assert stack.rlmm.partition_state(NAME).value.gaps == ()
    move(stack.rlmm, under_way, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, broker_id=9)
    assert len(stack.ship(log_dir).partitions[0].recorded) == 1


def test_what_another_broker_began_to_copy_not_long_ago_is_not_recorded_as_lost(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    young = segment(NAME, 10, 19, broker_id=9, event_timestamp_ms=time.time_ns() // 1_000_000)
    stack.rlmm.add_remote_log_segment_metadata(young)
    (problem,) = stack.ship(log_dir).partitions[0].problems
    assert problem.message.endswith("; not recorded: broker 9 copies offsets 10 to 19")
    assert stack.rlmm.partition_state(NAME).value.gaps == ()


def test_an_old_copy_of_another_broker_hides_no_loss(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    old = segment(NAME, 10, 19, broker_id=9, event_timestamp_ms=1)
    stack.rlmm.add_remote_log_segment_metadata(old)
    assert len(stack.ship(log_dir).partitions[0].recorded) == 1


@pytest.mark.parametrize(
    ("broker_id", "leader_epoch", "first_offset", "recorded"),
    [
        (9, 0, 0, 0),
        (9, 0, 19, 0),
        (9, 3, 19, 0),
        (9, 0, 20, 1),
        (7, 0, 0, 1),
    ],
)
def test_what_the_leader_reported_to_have_is_not_recorded_as_lost(
    stack: Stack,
    log_dir: Path,
    lost: PartitionFiles,
    broker_id: int,
    leader_epoch: int,
    first_offset: int,
    recorded: int,
) -> None:
    told = report_of(
        NAME,
        1_000,
        broker_id=broker_id,
        leader_epoch=leader_epoch,
        lineage=lineage((0, 0)),
        local_log_start_offset=first_offset,
    )
    taken(stack.rlmm, told)
    (partition,) = stack.ship(log_dir).partitions
    assert len(partition.recorded) == recorded
    if not recorded:
        assert partition.problems[0].message.endswith(
            f"; not recorded: broker 9 reported that its log begins at offset {first_offset}"
        )


def test_a_report_of_an_overruled_leader_hides_no_loss(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    taken(stack.rlmm, report_of(NAME, 1_000, broker_id=9, leader_epoch=0, lineage=lineage((0, 0))))
    lost.epochs((0, 0), (2, 12))
    assert len(stack.ship(log_dir).partitions[0].recorded) == 1


@pytest.fixture
def lost_twice(stack: Stack, log_dir: Path, lost: PartitionFiles) -> PartitionFiles:
    """Offsets 10 to 19 and 25 to 29 are lost, and nobody has recorded it; 30 to 34 are rolled."""
    ship([log_dir], stack.rsm, GapsRefused(stack.rlmm), ONE_TRY)
    lose_before_copy(lost, 30)
    return lost


@pytest.mark.parametrize("is_recorded", [False, True])
def test_losses_are_told_of_though_recording_the_second_one_fails_at_first(
    stack: Stack, log_dir: Path, lost_twice: PartitionFiles, is_recorded: bool
) -> None:
    rlmm = GapsUnanswered(stack.rlmm, is_recorded=is_recorded, unanswered={2})
    (partition,) = (report := ship([log_dir], stack.rsm, rlmm, SOME_TRIES)).partitions
    assert report.outcome is ShipOutcome.PARTIAL
    assert [problem.offset for problem in partition.problems] == [10, 25]
    assert [problem.offset for problem in partition.recorded] == [10, 25]
    assert partition.known_gaps == ()
    found = stack.rlmm.partition_state(NAME).value.gaps
    assert found == (OffsetGap(10, 19), OffsetGap(25, 29))
    assert stack.ship(log_dir).outcome is ShipOutcome.DONE


def test_a_loss_that_cannot_be_recorded_keeps_nothing_from_being_copied(
    stack: Stack, log_dir: Path, lost_twice: PartitionFiles
) -> None:
    rlmm = GapsUnanswered(stack.rlmm, is_recorded=False, unanswered=set(range(1, 9)))
    (partition,) = ship([log_dir], stack.rsm, rlmm, ONE_TRY).partitions
    assert partition.copied_segments == 1
    assert stack.ranges()[-1] == (30, 34)
    first, second, away = partition.problems
    text = "RetriableRemoteStorageError: the connection broke"
    assert first.message.endswith(f"; perhaps recorded as a gap: {text}")
    assert second.message.endswith(f"; not recorded: {text}")
    assert away.kind is ProblemKind.STORE_UNAVAILABLE
    assert rlmm.calls == 1
    assert not partition.complete


def test_a_known_gap_is_known_while_rlmm_is_away(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    stack.ship(log_dir)
    rlmm = SilentRlmm(stack.rlmm)
    rlm = StaticRemoteLogManager([log_dir], stack.rsm, rlmm)
    assert description(rlm).copied_through_offset == 24
    rlmm.is_silent = True
    found = description(rlm)
    assert found.copied_through_offset == 24
    away, known = found.problems
    assert away.kind is ProblemKind.STORE_UNAVAILABLE
    assert known.message.startswith("known gap: ")


def test_a_loss_that_the_first_of_several_passes_recorded_is_told_of(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("away"))
    (partition,) = (report := ship([log_dir], rsm, stack.rlmm, SOME_TRIES)).partitions
    kinds = [problem.kind for problem in partition.problems]
    assert kinds == [ProblemKind.LOST_BEFORE_COPY, ProblemKind.STORE_UNAVAILABLE]
    assert (len(partition.recorded), partition.known_gaps) == (1, ())
    assert report.outcome is ShipOutcome.FAILED


def test_a_range_that_is_copied_but_not_seen_yet_is_not_called_lost(
    stack: Stack, log_dir: Path
) -> None:
    files = PartitionFiles(log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [batch(10, 10)])
    stack.ship(log_dir)
    rlmm = SilentRlmm(stack.rlmm)
    rlm = StaticRemoteLogManager([log_dir], stack.rsm, rlmm)
    assert description(rlm).problems == ()
    files.snapshot(20)
    files.segment(20, [batch(20)])
    stack.ship(log_dir)
    lose_before_copy(files, 20)
    rlmm.is_silent = True
    kinds = [problem.kind for problem in description(rlm).problems]
    assert kinds == [ProblemKind.STORE_UNAVAILABLE]


def test_what_was_deleted_on_request_is_not_called_lost(
    stack: Stack, log_dir: Path, lost: PartitionFiles
) -> None:
    checkpoint = log_dir / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 22\n")
    assert stack.ship(log_dir).outcome is ShipOutcome.DONE
    assert stack.segments()[-1].epoch_ranges() == ((0, 22, 24),)
    assert description(stack.rlm(log_dir)).copied_through_offset == 24
    checkpoint.write_text("0\n0\n")
    lose_before_copy(lost, 25)
    report = stack.ship(log_dir)
    assert report.outcome is ShipOutcome.DONE
    assert report.partitions[0].problems == ()


def test_a_segment_that_the_broker_deletes_while_it_is_copied_is_lost(
    stack: Stack, log_dir: Path
) -> None:
    files = three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = lambda _: files.file(0, ".log").unlink()
    (partition,) = ship([log_dir], rsm, stack.rlmm, ONE_TRY).partitions
    (problem,) = partition.problems
    assert (problem.kind, problem.offset) == (ProblemKind.LOST_BEFORE_COPY, 0)
    assert not partition.complete
    assert stack.segments() == []


def test_an_open_transaction_holds_its_segment_back(stack: Stack, log_dir: Path) -> None:
    files = PartitionFiles(log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [in_transaction(10, 9, 10)])
    files.snapshot(20, {9: 10})
    files.segment(20, [batch(20)])
    assert stack.ship(log_dir).outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9)]


def test_a_damaged_segment_holds_back_itself_and_those_behind_it_only(
    stack: Stack, log_dir: Path
) -> None:
    sick, well = three_segments(log_dir), TopicIdPartition(NAME.topic_id, NAME.topic, 1)
    three_segments(log_dir, well)
    log = sick.segment(10, [batch(10, 5), batch(15, 5)[:-1]])
    report = stack.ship(log_dir)
    assert report.outcome is ShipOutcome.PARTIAL
    first, second = report.partitions
    (problem,) = first.problems
    assert (problem.kind, problem.path, problem.offset) == (
        ProblemKind.TRUNCATED_BATCH,
        str(log),
        15,
    )
    assert (first.copied_segments, first.held_segments) == (1, 1)
    assert second.complete
    assert stack.ranges() == [(0, 9)]
    assert stack.ranges(well) == [(0, 9), (10, 19)]


def test_a_missing_snapshot_holds_back_and_a_repaired_one_lets_go(
    stack: Stack, log_dir: Path
) -> None:
    files = three_segments(log_dir)
    files.file(10, ".snapshot").unlink()
    report = stack.ship(log_dir)
    assert report.outcome is ShipOutcome.FAILED
    assert report.partitions[0].held_segments == 2
    assert stack.segments() == []
    files.snapshot(10)
    assert stack.ship(log_dir).outcome is ShipOutcome.DONE


def test_missing_leader_epochs_hold_the_partition(stack: Stack, log_dir: Path) -> None:
    files = three_segments(log_dir)
    (files.path / "leader-epoch-checkpoint").unlink()
    (partition,) = stack.ship(log_dir).partitions
    assert [p.kind for p in partition.problems] == [ProblemKind.LEADER_EPOCHS_MISSING]
    assert partition.held_segments == 2


def test_a_rebuilt_index_is_reported_and_shipped(stack: Stack, log_dir: Path) -> None:
    files = three_segments(log_dir)
    files.file(0, ".index").write_bytes(b"\0" * 7)
    report = stack.ship(log_dir)
    assert report.outcome is ShipOutcome.DONE
    assert [p.kind for p in report.partitions[0].problems] == [ProblemKind.INDEX_REBUILT]


class FailingRsm:
    """The real RSM, but for one copy or delete."""

    def __init__(self, rsm: ObjectRemoteStorageManager) -> None:
        self._rsm = rsm
        self.before_copy: Callable[[RemoteLogSegmentMetadata], None] = lambda _: None
        self.after_copy: Callable[[bytes | None], bytes | None] = lambda answer: answer
        self.before_delete: Callable[[], None] = lambda: None

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self.before_copy(metadata)
        return self.after_copy(self._rsm.copy_log_segment_data(metadata, data))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.before_delete()
        self._rsm.delete_log_segment_data(metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rsm, name)


class FailingRlmm:
    """Away, whatever is asked."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm

    def __getattr__(self, name: str) -> Any:
        assert callable(getattr(self._rlmm, name))
        return raising(RetriableRemoteStorageError("away"))


class GapsRefused:
    """The real RLMM, but that it takes no gap."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm

    def record_gap(self, *args: Any, **kwargs: Any) -> Any:
        raise InvalidStateTransitionError("held")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rlmm, name)


class GapsUnanswered:
    """The real RLMM; some of the calls that record a gap, counted from 1, are not answered.

    Args:
        is_recorded: the call takes effect all the same.
    """

    def __init__(
        self, rlmm: SqlRemoteLogMetadataManager, *, is_recorded: bool, unanswered: set[int]
    ) -> None:
        self._rlmm = rlmm
        self._is_recorded = is_recorded
        self._unanswered = unanswered
        self.calls = 0

    def record_gap(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        is_answered = self.calls not in self._unanswered
        if is_answered or self._is_recorded:
            outcome = self._rlmm.record_gap(*args, **kwargs)
        if not is_answered:
            raise RetriableRemoteStorageError("the connection broke")
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rlmm, name)


class SilentRlmm:
    """The real RLMM, until it is silent; counts what it is asked for its segments."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        self.is_silent = False
        self.lists = 0

    def list_remote_log_segments(self, *args: Any, **kwargs: Any) -> Any:
        self.lists += 1
        if self.is_silent:
            raise RetriableRemoteStorageError("silent")
        return self._rlmm.list_remote_log_segments(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rlmm, name)


class Hanging:
    """The real manager; calls of one name hang, each counted, until they are let go."""

    def __init__(self, manager: object, name: str, hanging: Semaphore) -> None:
        self._manager = manager
        self._name = name
        self._hanging = hanging
        self._let_go = Event()

    def let_go(self) -> None:
        self._let_go.set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._manager, name)

        def hang(*args: Any, **kwargs: Any) -> Any:
            self._hanging.release()
            assert self._let_go.wait(60.0)
            return method(*args, **kwargs)

        return hang if name == self._name else method


class Recording:
    """The real RLMM; keeps what each change came with."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        self.adds: list[MutationContext] = []
        self.updates: list[tuple[RemoteLogSegmentState, MutationContext]] = []

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        self.adds.append(context)
        return self._rlmm.add_remote_log_segment_metadata(metadata, context, lease_ms=lease_ms)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self.updates.append((update.state, context))
        return self._rlmm.update_remote_log_segment_metadata(update, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rlmm, name)


class SizesUnknown:
    """The real RLMM, of segments whose copier did not know their size."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm

    def remote_log_segment_metadata(
        self, name: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        found = self._rlmm.remote_log_segment_metadata(name, epoch, offset)
        assert found.value is not None
        return replace(found, value=replace(found.value, segment_size_in_bytes=-1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rlmm, name)


class LateFinish:
    """The real RLMM; the first COPY_SEGMENT_FINISHED is answered UNAVAILABLE and takes effect only
    just before the next change."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        self._late: list[tuple[RemoteLogSegmentMetadataUpdate, MutationContext]] = []
        self._delayed = False

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        if update.state is FINISHED and not self._delayed:
            self._delayed = True
            self._late.append((update, context))
            raise RetriableRemoteStorageError("the connection broke")
        while self._late:
            self._rlmm.update_remote_log_segment_metadata(*self._late.pop())
        return self._rlmm.update_remote_log_segment_metadata(update, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rlmm, name)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@dataclass
class FailingOnce:
    """Raises `error` the first time."""

    error: Exception
    calls: list[object] = field(default_factory=list)

    def __call__(self, *arguments: object) -> None:
        self.calls.append(arguments)
        if len(self.calls) == 1:
            raise self.error


def test_a_copy_that_fails_for_good_is_cleaned_up(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RemoteStorageError("no bucket"))
    report = ship([log_dir], rsm, stack.rlmm, ONE_TRY)
    (problem,) = report.partitions[0].problems
    assert (problem.kind, problem.held_segments) == (ProblemKind.COPY_FAILED, 2)
    assert report.outcome is ShipOutcome.FAILED
    assert stack.segments() == []
    assert stack.keys() == []


def test_a_copy_that_may_have_worked_is_given_up_and_cleaned_up_by_the_next_pass(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)

    def lost_answer(answer: bytes | None) -> bytes | None:
        raise RetriableRemoteStorageError("the connection broke")

    rsm.after_copy = lost_answer
    progress = Counting()
    report = ship([log_dir], rsm, stack.rlmm, ONE_TRY, progress)
    assert (progress.sent_bytes, progress.copied_segments) == (0, 0)
    assert [p.kind for p in report.partitions[0].problems] == [ProblemKind.STORE_UNAVAILABLE]
    (dangling,) = stack.segments()
    assert dangling.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    (partition,) = stack.ship(log_dir).partitions
    assert (partition.cleaned_attempts, partition.copied_segments) == (1, 2)
    assert stack.ranges() == [(0, 9), (10, 19)]
    assert dangling.remote_log_segment_id not in {s.remote_log_segment_id for s in stack.segments()}
    assert len(stack.keys()) == 2 * 3


def test_an_attempt_that_cannot_be_cleaned_up_now_keeps_nothing_from_being_copied(
    stack: Stack, log_dir: Path
) -> None:
    """As where it is looked for in every location, and one registered before is away."""
    files = three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("the store went away"))
    rsm.before_delete = raising(RetriableRemoteStorageError("the old store is away"))
    ship([log_dir], rsm, stack.rlmm, ONE_TRY)
    (left,) = stack.segments()
    rsm.before_copy = lambda _: None
    files.snapshot(25)
    files.segment(25, [batch(25)])
    (partition,) = ship([log_dir], rsm, stack.rlmm, ONE_TRY).partitions
    assert (partition.cleaned_attempts, partition.copied_segments) == (0, 3)
    (problem,) = partition.problems
    assert problem.kind is ProblemKind.STORE_UNAVAILABLE
    assert "the old store is away" in problem.message
    assert not partition.complete
    (partition,) = stack.ship(log_dir).partitions
    assert (partition.cleaned_attempts, partition.problems) == (1, ())
    assert left.remote_log_segment_id not in {s.remote_log_segment_id for s in stack.segments()}
    assert stack.ranges() == [(0, 9), (10, 19), (20, 24)]


def test_a_finish_that_takes_effect_late_is_not_taken_back_by_the_clean_up(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    settings = ShipSettings(retry_for_s=30.0, backoff=Backoff(initial_s=0.01))
    report = ship([log_dir], stack.rsm, LateFinish(stack.rlmm), settings)
    assert report.outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9), (10, 19)]
    assert len(stack.keys()) == 2 * 3


# Nobody else gives a copy up that is leased.
SAME_BROKER = Deleter(broker_id=7)


def remove_meanwhile(stack: Stack) -> None:
    deletes = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    marked = RemotePartitionDeleteMetadata(NAME, deletes, event_timestamp_ms=1, broker_id=7)
    stack.rlmm.put_remote_partition_delete_metadata(marked)
    assert remove_partition(stack.rlmm, stack.rsm, NAME, SAME_BROKER, 1).is_finished


def mark_meanwhile(stack: Stack) -> None:
    """And delete what is there."""
    delete_the_copy(stack, SAME_BROKER)


def delete_the_copy(stack: Stack, deleter: Deleter) -> None:
    (segment,) = stack.segments()
    deletion = Deletion(segment, DeletionReason.LOG_START_OFFSET, "")
    begun = begin_deletion(stack.rlmm, NAME, [deletion], None, None, deleter, 1)
    assert [outcome.error for outcome in begun] == [None]
    finished = finish_deletion(stack.rlmm, stack.rsm, [segment], deleter, 1)
    assert [outcome.error for outcome in finished] == [None]


@pytest.mark.parametrize("delete", [remove_meanwhile, mark_meanwhile])
def test_a_copy_that_ends_after_its_segment_was_deleted_leaves_no_objects(
    stack: Stack, log_dir: Path, delete: Callable[[Stack], None]
) -> None:
    files = PartitionFiles(log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [batch(10)])
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = lambda _: delete(stack)
    report = ship([log_dir], rsm, stack.rlmm, ONE_TRY)
    assert report.outcome is ShipOutcome.FAILED
    assert stack.keys() == []


def test_objects_that_cannot_be_deleted_then_hide_no_failure(
    stack: Stack, log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = lambda _: mark_meanwhile(stack)
    rsm.before_delete = raising(RetriableRemoteStorageError("away"))
    (partition,) = ship([log_dir], rsm, stack.rlmm, ONE_TRY).partitions
    (problem,) = partition.problems
    assert problem.kind is ProblemKind.COPY_FAILED
    assert "InvalidStateTransitionError" in problem.message
    assert "which is deleted, were left" in caplog.text


def test_only_what_decides_how_an_attempt_ends_bears_a_request_id(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    rsm, rlmm = FailingRsm(stack.rsm), Recording(stack.rlmm)
    rsm.before_copy = FailingOnce(RemoteStorageError("no bucket"))
    ship([log_dir], rsm, rlmm, ONE_TRY)
    ship([log_dir], rsm, rlmm, ONE_TRY)
    assert [context.request_id for context in rlmm.adds] == [None, None, None]
    with_id = [state for state, context in rlmm.updates if context.request_id]
    without = [state for state, context in rlmm.updates if not context.request_id]
    assert with_id == [RemoteLogSegmentState.DELETE_SEGMENT_STARTED, FINISHED, FINISHED]
    assert without == [RemoteLogSegmentState.DELETE_SEGMENT_FINISHED]


def test_a_folder_that_becomes_unreadable_is_named_and_the_others_go_on(
    stack: Stack, log_dir: Path
) -> None:
    well = three_segments(log_dir)
    sick = three_segments(log_dir, TopicIdPartition(NAME.topic_id, NAME.topic, 1))
    rsm = FailingRsm(stack.rsm)

    def make_unreadable(_: RemoteLogSegmentMetadata) -> None:
        if not sick.path.is_symlink():
            sick.path.rename(log_dir / "elsewhere")
            sick.path.symlink_to(sick.path)  # even root cannot read it

    rsm.before_copy = make_unreadable
    settings = ShipSettings(threads=1, retry_for_s=0.0)
    first, second = ship([log_dir], rsm, stack.rlmm, settings).partitions
    assert first.complete
    assert stack.ranges(well.name) == [(0, 9), (10, 19)]
    (problem,) = second.problems
    assert (problem.kind, problem.path) == (ProblemKind.UNREADABLE, str(sick.path))


def test_a_deletion_left_behind_is_finished(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RemoteStorageError("no bucket"))
    rsm.before_delete = raising(RetriableRemoteStorageError("away"))
    ship([log_dir], rsm, stack.rlmm, ONE_TRY)
    (left,) = stack.segments()
    assert left.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    stack.ship(log_dir)
    assert stack.ranges() == [(0, 9), (10, 19)]


def test_attempts_of_another_broker_are_not_touched(
    stack: Stack, log_dir: Path, tmp_path: Path
) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("away"))
    ship([log_dir], rsm, stack.rlmm, ONE_TRY)
    other = write_log_dir(tmp_path / "other", broker_id=8)
    three_segments(other)
    (partition,) = stack.ship(other).partitions
    assert partition.cleaned_attempts == 0
    assert len(stack.segments()) == 3


def test_an_outage_is_waited_out(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    once = FailingOnce(RetriableRemoteStorageError("away"))
    rsm.before_copy = once
    settings = ShipSettings(retry_for_s=30.0, backoff=Backoff(initial_s=0.01))
    report = ship([log_dir], rsm, stack.rlmm, settings)
    assert report.outcome is ShipOutcome.DONE
    assert len(once.calls) == 3
    assert stack.ranges() == [(0, 9), (10, 19)]


def test_custom_metadata_over_the_limit_is_cleaned_up_and_not_tried_again(
    stack: Stack, log_dir: Path
) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    copies: list[RemoteLogSegmentMetadata] = []
    rsm.before_copy = copies.append
    limits = RlmLimits(interval_s=0.0, copy=CopyLimits(custom_metadata_max_bytes=1))
    rlm = StaticRemoteLogManager([log_dir], rsm, stack.rlmm, limits)
    for _ in range(2):
        rlm.scheduler.tick()
        assert rlm.scheduler.wait_idle(30.0)
    assert len(copies) == 1
    assert stack.segments() == []
    assert stack.keys() == []
    (problem,) = description(rlm).problems
    assert "custom_metadata" in problem.message
    rlm.stop(1.0)


class CutWhileCopied(FailingRsm):
    """Cuts the log file when its first chunk was taken."""

    def __init__(self, rsm: ObjectRemoteStorageManager, log: Path) -> None:
        super().__init__(rsm)
        self._log = log

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        def chunks() -> Iterator[SegmentChunk]:
            for number, chunk in enumerate(data.chunks):
                yield chunk
                if number == 0:
                    self._log.write_bytes(b"")

        return super().copy_log_segment_data(metadata, LogSegmentData(data.files, chunks()))


def test_a_file_that_is_cut_while_it_is_copied_fails_the_copy(stack: Stack, log_dir: Path) -> None:
    files = PartitionFiles(log_dir)
    log = files.segment(0, [batch(0, payload=b"x" * 3_000_000)])
    files.snapshot(1)
    files.segment(1, [batch(1)])
    (partition,) = ship([log_dir], CutWhileCopied(stack.rsm, log), stack.rlmm, ONE_TRY).partitions
    (problem,) = partition.problems
    assert (problem.kind, problem.path) == (ProblemKind.COPY_FAILED, str(log))
    assert stack.segments() == []
    assert stack.keys() == []


def test_two_copiers_of_one_folder_do_not_meet(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    rsm = FailingRsm(stack.rsm)
    inner: list[ShipReport] = []

    def ship_meanwhile(_: RemoteLogSegmentMetadata) -> None:
        if not inner:
            inner.append(stack.ship(log_dir))

    rsm.before_copy = ship_meanwhile
    outer = ship([log_dir], rsm, stack.rlmm, ONE_TRY)
    assert outer.outcome is ShipOutcome.DONE
    (partition,) = inner[0].partitions
    assert (partition.copied_segments, partition.cleaned_attempts) == (0, 0)
    assert not partition.complete


def test_a_cancelled_ship_leaves_what_the_next_one_finishes(stack: Stack, log_dir: Path) -> None:
    three_segments(log_dir)
    cancelled = Event()
    rsm = FailingRsm(stack.rsm)

    def cancel(_: RemoteLogSegmentMetadata) -> None:
        cancelled.set()

    rsm.before_copy = cancel
    report = ship([log_dir], rsm, stack.rlmm, ONE_TRY, cancelled=cancelled)
    assert report.outcome is ShipOutcome.FAILED
    assert [s.state for s in stack.segments()] == [RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
    assert stack.ship(log_dir).outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9), (10, 19)]


@dataclass
class Counting:
    planned_bytes: int = 0
    sent_bytes: int = 0
    copied_segments: int = 0

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        self.planned_bytes += size_bytes

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        self.sent_bytes += size_bytes

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        self.copied_segments += 1


def test_the_service_copies_and_describes(stack: Stack, log_dir: Path) -> None:
    files = three_segments(log_dir)
    rlm = stack.rlm(log_dir)
    before = description(rlm)
    assert (before.pending_segments, before.copied_through_offset) == (2, -1)
    rlm.scheduler.tick()
    assert rlm.scheduler.wait_idle(30.0)
    after = description(rlm)
    assert (after.leader_id, after.leader_epoch) == (7, 0)
    assert (after.log_start_offset, after.log_end_offset) == (0, 25)
    assert (after.pending_segments, after.copied_through_offset) == (0, 19)
    assert (after.local_segments, after.remote_segments) == (3, 2)
    assert after.remote_size_bytes == sum(
        files.file(base, ".log").stat().st_size for base in (0, 10)
    )
    rlm.stop(1.0)


def test_descriptions_come_in_pages(shipped: Shipped) -> None:
    rlm = shipped.stack.rlm(shipped.log_dir)
    names: list[tuple[str, int]] = []
    token = ""
    for _ in range(4):
        page = rlm.describe_partitions(page_size=3, page_token=token)
        names += _names(page.partitions)
        token = page.next_page_token
    assert token == ""
    assert names == sorted(names)
    assert len(names) == 11


def test_a_silent_database_is_asked_once_for_a_page(stack: Stack, log_dir: Path) -> None:
    names = [TopicIdPartition(NAME.topic_id, NAME.topic, number) for number in range(4)]
    for name in names:
        three_segments(log_dir, name)
    stack.ship(log_dir)
    shutil.rmtree(log_dir / "t-1")
    rlmm = SilentRlmm(stack.rlmm)
    rlmm.is_silent = True
    rlm = StaticRemoteLogManager([log_dir], stack.rsm, rlmm)
    page = rlm.describe_partitions()
    assert rlmm.lists == 1
    assert _names(page.partitions) == [("t", 0), ("t", 2), ("t", 3)]
    kinds = [[p.kind for p in found.problems] for found in page.partitions]
    assert kinds == [[ProblemKind.STORE_UNAVAILABLE]] * 3
    assert [p.kind for p in page.log_dir_problems] == [ProblemKind.STORE_UNAVAILABLE]
    rlmm.is_silent = False
    assert len(rlm.describe_partitions().partitions) == 4


def test_many_problems_are_listed_in_part_and_counted(stack: Stack, log_dir: Path) -> None:
    files = three_segments(log_dir)
    partition = next(iter(find_partitions([log_dir]).partitions.values()))
    problems = tuple(
        Problem(ProblemKind.COPY_FAILED, str(files.path), f"no {number}", number, 2)
        for number in range(50)
    )
    sick = new_partition(NAME, LocalPartition(partition), stack.rsm, stack.rlmm)
    sick.note(problems)
    ((found,), _) = PageDescriber(7).page([sick])
    assert found.problems[:20] == problems[:20]
    assert [p.message for p in found.problems[20:]] == ["and 30 more"]
    assert sum(p.held_segments for p in found.problems) == 100


def test_a_page_ends_early_where_there_are_too_many_problems(stack: Stack, log_dir: Path) -> None:
    for number in range(120):
        three_segments(log_dir, TopicIdPartition(NAME.topic_id, NAME.topic, number))
    rlm = StaticRemoteLogManager([log_dir], stack.rsm, FailingRlmm(stack.rlmm))
    page = rlm.describe_partitions(page_size=1000)
    assert len(page.partitions) == 120
    for name in [d.topic_id_partition for d in page.partitions]:
        rlm._partition_of(name).note(
            tuple(Problem(ProblemKind.COPY_FAILED, "p", "", n) for n in range(20))
        )
    page = rlm.describe_partitions(page_size=1000)
    assert len(page.partitions) < 120
    assert len(list(all_descriptions(rlm))) == 120


def _names(partitions: Sequence[PartitionDescription]) -> list[tuple[str, int]]:
    found = (p.topic_id_partition for p in partitions)
    return [(name.topic, name.partition) for name in found]
