"""Test what RSM answers for indexes that the store has lost, damaged, or cannot read now."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from services.api.calls import Call, serving
from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import CopyDigests, IndexType
from services.api.segments import RemoteLogSegmentMetadata, SegmentLeaderEpoch
from services.records.batches import MemoryWindow, walk_batches
from services.records.index_files import AbortedTxn
from services.records.producers import Producers
from services.records.segment_indexes import IndexBuilder, Transactions
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.layout import MAX_MANIFEST_EPOCHS_BYTES, CustomMetadata
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from services.rsm.verification import ReadVerification
from services.workflows.scrub_copy import CopyScrub
from services.workflows.segment_views import missing_objects
from tests.contract.remote_storage_manager_contract import MIB, Files, a_segment, copied, index
from tests.harness.eventually import eventually
from tests.harness.published import published
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    batch,
    in_transaction,
    marker,
    producer_snapshot,
)

FROM_THE_LOG = (
    IndexType.OFFSET,
    IndexType.TIMESTAMP,
    IndexType.TRANSACTION,
    IndexType.PRODUCER_SNAPSHOT,
)
START, END = 1000, 1099
PRODUCER = 7
EPOCHS = b"0\n2\n0 0\n3 500\n"


class Store(FilesystemStorage):
    """Counts ranged reads, and lets some fail.

    Attributes:
        away, odd: numbers of reads of indexes, from 1, in which the store is away or answers that
            there is no such object.
        before_log: called before each read of a log.
        log_bytes: read of logs.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[str] = []
        self.away: frozenset[int] = frozenset()
        self.odd: frozenset[int] = frozenset()
        self.before_log: Callable[[], object] = lambda: None
        self.log_bytes = 0

    def reads_of(self, suffix: str) -> int:
        return sum(key.endswith(suffix) for key in self.reads)

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        self.reads.append(key)
        if key.endswith(".indexes"):
            number = self.reads_of(".indexes")
            if number in self.away:
                raise RetriableRemoteStorageError("the store is away")
            if number in self.odd:
                raise RemoteResourceNotFoundError("no such object")
        else:
            self.before_log()
        for piece in super().fetch(key, start, end):
            self.log_bytes += len(piece) if key.endswith(".log") else 0
            yield piece


class World:
    """A segment of 3 MiB in which a transaction ends that began at offset 990."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(root)
        self.rsm = self.another_rsm()
        batches = [
            batch(offset, payload=bytes(32 * 1024), timestamp_ms=offset)
            for offset in range(START, END)
        ]
        batches[10] = in_transaction(START + 10, PRODUCER)
        self.log = b"".join([*batches, marker(END, PRODUCER, ABORT)])
        self.transactions = {PRODUCER: 990}
        self.expected = self.walked(self.transactions)
        epochs = {IndexType.LEADER_EPOCH: EPOCHS}
        self.first = a_segment(len(self.log), START)
        self.first = replace(self.first, segment_leader_epochs=(SegmentLeaderEpoch(0, START),))
        self.segment = self.copy(self.log, self.first, {**self.expected, **epochs})
        self.before = self.copy_before(self.transactions)

    def another_rsm(self) -> ObjectRemoteStorageManager:
        """Open the store by an RSM that has read nothing of it yet."""
        return ObjectRemoteStorageManager(
            Locations(Location(1, self.store, "")),
            PartBuffers(4, 8 * MIB, 10_000),
            2,
            verification=ReadVerification("always", MIB),
        )

    def walked(self, transactions: dict[int, int]) -> dict[IndexType, bytes]:
        built = IndexBuilder(START, Transactions(transactions))
        producers = Producers(producer_snapshot(transactions))
        for each in walk_batches(MemoryWindow(self.log), 0, len(self.log), START, verify=True):
            built.observe(each)
            producers.observe(each)
        return {
            IndexType.OFFSET: built.offset_index(),
            IndexType.TIMESTAMP: built.time_index(),
            IndexType.TRANSACTION: built.transaction_index(),
            IndexType.PRODUCER_SNAPSHOT: producers.snapshot(),
        }

    def copy(
        self, log: bytes, metadata: RemoteLogSegmentMetadata, indexes: dict[IndexType, bytes]
    ) -> RemoteLogSegmentMetadata:
        return copied(self.rsm, Files(log, indexes), metadata)

    def copy_before(
        self, transactions: dict[int, int], start: int = 900, end: int = 999, epoch: int = 0
    ) -> RemoteLogSegmentMetadata:
        """Copy a segment of the same partition, with a producer snapshot."""
        made = a_segment(1, start, self.first.topic_id_partition.topic_id)
        made = replace(
            made, end_offset=end, segment_leader_epochs=(SegmentLeaderEpoch(epoch, start),)
        )
        indexes = dict.fromkeys(IndexType, b"")
        snapshot = {IndexType.PRODUCER_SNAPSHOT: producer_snapshot(transactions)}
        return self.copy(b"x", made, {**indexes, **snapshot})

    def path(self, suffix: str, segment: RemoteLogSegmentMetadata | None = None) -> Path:
        found = (segment or self.segment).remote_log_segment_id.id.hex
        (path,) = self.root.rglob(f"*{found}*{suffix}")
        return path

    def read(self, kind: IndexType) -> bytes:
        return index(self.rsm, self.segment, kind)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def rebuilds(kind: IndexType) -> float:
    return published("sediment_rsm_index_rebuilds_total", {"index": kind.name.lower()})


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "damaged"])
@pytest.mark.parametrize("kind", [*FROM_THE_LOG, IndexType.LEADER_EPOCH])
def test_an_index_is_rebuilt_as_it_was(world: World, kind: IndexType, is_lost: bool) -> None:
    path, before = world.path(".indexes"), rebuilds(kind)
    path.unlink() if is_lost else path.write_bytes(b"\xff" * path.stat().st_size)
    assert world.read(kind) == {**world.expected, IndexType.LEADER_EPOCH: EPOCHS}[kind]
    assert rebuilds(kind) == before + 1


def test_an_index_that_ends_early_is_rebuilt_and_the_others_are_read(world: World) -> None:
    path = world.path(".indexes")
    path.write_bytes(path.read_bytes()[:-1])
    assert world.read(IndexType.LEADER_EPOCH) == EPOCHS
    assert world.read(IndexType.OFFSET) == world.expected[IndexType.OFFSET]
    assert world.store.reads_of(".log") == 0


def test_all_readers_of_a_segment_share_one_walk(world: World) -> None:
    world.path(".indexes").unlink()
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(world.read, [*FROM_THE_LOG, *FROM_THE_LOG]))
    assert built == [*world.expected.values()] * 2
    assert world.store.reads_of(".log") == 1


def test_a_log_that_is_damaged_itself_is_named_and_not_walked_again(world: World) -> None:
    indexes, log = world.path(".indexes"), world.path(".log")
    indexes.unlink()
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    for kind in FROM_THE_LOG:
        with pytest.raises(CorruptSegmentError) as caught:
            world.read(kind)
        for part in (indexes.name, "cannot be rebuilt", log.name, "chunk 3 of", "sediment scrub"):
            assert part in str(caught.value)
    assert world.store.reads_of(".log") == 1


def test_a_log_that_was_damaged_when_it_was_copied_is_named_by_its_batch(world: World) -> None:
    log = bytearray(world.log)
    log[len(log) // 2 + 1000] ^= 1
    other = replace(a_segment(len(log), START), custom_metadata=None)
    segment = world.copy(bytes(log), other, dict.fromkeys(IndexType, b"index"))
    world.path(".indexes", segment).unlink()
    with pytest.raises(CorruptSegmentError, match=r"wrong CRC-32C \(batch at offset 1050, bytes"):
        index(world.rsm, segment, IndexType.OFFSET)


def test_leader_epochs_that_are_too_long_for_the_manifest_are_refused(world: World) -> None:
    other = replace(world.first, remote_log_segment_id=a_segment().remote_log_segment_id)
    for size, is_refused in (
        (MAX_MANIFEST_EPOCHS_BYTES, False),
        (MAX_MANIFEST_EPOCHS_BYTES + 1, True),
    ):
        epochs = bytes(range(256)) * (size // 256 + 1)
        files = {**dict.fromkeys(IndexType, b""), IndexType.LEADER_EPOCH: epochs[:size]}
        other = replace(other, remote_log_segment_id=a_segment().remote_log_segment_id)
        segment = world.copy(world.log, other, files)
        world.path(".indexes", segment).unlink()
        if is_refused:
            with pytest.raises(CorruptSegmentError, match="since it is too long"):
                index(world.rsm, segment, IndexType.LEADER_EPOCH)
        else:
            assert index(world.rsm, segment, IndexType.LEADER_EPOCH) == epochs[:size]


# --- the transactions that are open at the segment's start


@pytest.mark.parametrize(
    ("others", "first_offset"),
    [
        ([], 990),
        ([{"start": 0, "end": 899}, {"start": 950, "end": 998}], 990),
        ([{"epoch": 1}], 990),
    ],
    ids=["alone", "beside others", "beside another history"],
)
def test_the_snapshot_before_the_segment_has_them(
    world: World, others: list[dict[str, int]], first_offset: int
) -> None:
    for other in others:
        world.copy_before({PRODUCER: 5}, **other)
    world.path(".indexes").unlink()
    expected = AbortedTxn(PRODUCER, first_offset, END, END + 1).to_bytes()
    assert world.read(IndexType.TRANSACTION) == expected


def test_the_segment_before_may_be_far_away(world: World) -> None:
    world.rsm.delete_log_segment_data(world.before)
    world.copy_before({PRODUCER: 5}, start=1)
    world.path(".indexes").unlink()
    assert world.read(IndexType.TRANSACTION) == AbortedTxn(PRODUCER, 5, END, END + 1).to_bytes()


@pytest.mark.parametrize("lost", ["segment", "snapshot"])
def test_without_it_a_transaction_counts_from_its_first_batch_in_the_segment(
    world: World, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    if lost == "segment":
        world.rsm.delete_log_segment_data(world.before)
    else:
        world.path(".indexes", world.before).unlink()
    world.path(".indexes").unlink()
    assert world.read(IndexType.TRANSACTION) == world.walked({})[IndexType.TRANSACTION]
    assert "its rebuilt transaction index is not the one that was copied" in caplog.text
    with pytest.raises(CorruptSegmentError, match="snapshot before the segment is lost, too"):
        world.read(IndexType.PRODUCER_SNAPSHOT)


# --- what is not lost


@pytest.mark.parametrize("kind", IndexType)
def test_a_deleted_segment_has_no_index(world: World, kind: IndexType) -> None:
    for each in IndexType:
        world.read(each)
    assert not world.store.delete(
        [str(world.path(each).relative_to(world.root)) for each in (".manifest", ".indexes")]
    )
    with pytest.raises(RemoteResourceNotFoundError):
        index(world.another_rsm(), world.segment, kind)


def test_a_walk_ends_with_its_segment_and_nothing_of_it_is_cached(world: World) -> None:
    world.path(".indexes").unlink()
    world.store.before_log = partial(world.rsm.delete_log_segment_data, world.segment)
    for _ in range(2):
        with pytest.raises(RemoteResourceNotFoundError, match="sediment scrub"):
            world.read(IndexType.OFFSET)
    assert world.store.reads_of(".log") == 1


def test_what_was_rebuilt_is_gone_with_its_segment(world: World) -> None:
    world.path(".indexes").unlink()
    world.read(IndexType.OFFSET)
    world.rsm.delete_log_segment_data(world.segment)
    with pytest.raises(RemoteResourceNotFoundError):
        world.read(IndexType.OFFSET)


def test_nothing_is_decided_while_the_store_is_away(world: World) -> None:
    """The first read finds no object, the second no store."""
    world.store.odd, world.store.away = frozenset({1}), frozenset({2})
    with pytest.raises(RetriableRemoteStorageError, match="the store is away"):
        world.read(IndexType.OFFSET)
    assert world.read(IndexType.OFFSET) == world.expected[IndexType.OFFSET]
    assert world.store.reads_of(".log") == 0


def test_an_index_that_the_second_read_finds_is_not_lost(world: World) -> None:
    world.store.odd = frozenset({1})
    before = rebuilds(IndexType.OFFSET)
    assert world.read(IndexType.OFFSET) == world.expected[IndexType.OFFSET]
    assert (rebuilds(IndexType.OFFSET), world.store.reads_of(".log")) == (before, 0)


def test_without_its_manifest_nothing_says_what_an_index_was(world: World) -> None:
    world.path(".manifest").write_bytes(b"{")
    world.path(".indexes").unlink()
    with pytest.raises(RemoteResourceNotFoundError, match="ENOENT"):
        world.read(IndexType.OFFSET)
    assert world.store.reads_of(".log") == 0


def test_an_empty_index_needs_no_walk(world: World) -> None:
    indexes = {IndexType.TRANSACTION: b"", IndexType.LEADER_EPOCH: EPOCHS}
    other = replace(world.first, remote_log_segment_id=a_segment().remote_log_segment_id)
    segment = world.copy(world.log, other, {**dict.fromkeys(IndexType, b"x"), **indexes})
    world.path(".indexes", segment).unlink()
    assert index(world.rsm, segment, IndexType.TRANSACTION) == b""
    assert world.store.reads_of(".log") == 0


# --- bounds


def test_a_walk_whose_caller_left_is_ended_by_the_next(world: World) -> None:
    world.path(".indexes").unlink()
    call = Call("a", "1", is_active=lambda: world.store.log_bytes < 2 * MIB)
    with serving(call), pytest.raises(RetriableRemoteStorageError, match="has cancelled"):
        world.read(IndexType.OFFSET)
    read = world.store.log_bytes
    assert [world.read(kind) for kind in FROM_THE_LOG] == [*world.expected.values()]
    assert world.store.log_bytes - read < len(world.log)


def test_a_walk_ends_with_the_time_of_its_call(world: World) -> None:
    world.path(".indexes").unlink()
    call = Call("a", "1", left_s=lambda: MIB - world.store.log_bytes)
    with serving(call), pytest.raises(RetriableRemoteStorageError, match="deadline passed"):
        world.read(IndexType.OFFSET)
    assert world.store.log_bytes <= 2 * MIB


def test_few_logs_are_walked_at_once(world: World) -> None:
    segments = []
    for _ in range(3):
        other = replace(world.first, remote_log_segment_id=a_segment().remote_log_segment_id)
        segments.append(world.copy(world.log, other, dict.fromkeys(IndexType, b"index")))
        world.path(".indexes", segments[-1]).unlink()
    gate = Event()
    world.store.before_log = partial(gate.wait, 60)
    with ThreadPoolExecutor(2) as pool:
        walks = [pool.submit(index, world.rsm, s, IndexType.OFFSET) for s in segments[:2]]
        eventually(lambda: world.store.reads_of(".log") == 2)
        with pytest.raises(RetriableRemoteStorageError, match="2 other logs are being read"):
            index(world.rsm, segments[2], IndexType.OFFSET)
        gate.set()
        assert all(walk.result(60) for walk in walks)
    assert index(world.rsm, segments[2], IndexType.OFFSET)


# --- checks


def test_checks_see_what_is_stored(world: World) -> None:
    world.path(".indexes").unlink()
    assert world.read(IndexType.OFFSET)
    assert missing_objects(world.rsm, world.segment)
    custom = CustomMetadata.from_bytes(world.segment.custom_metadata or b"")
    location = Location(1, world.store, "")
    manifest = location.read_manifest_of(location.keys(world.segment), custom)
    digests = CopyDigests(manifest.log, manifest.indexes)
    with pytest.raises(RemoteResourceNotFoundError):
        list(CopyScrub(world.rsm, world.segment, digests, lambda _: None).damages())
