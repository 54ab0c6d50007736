"""Test watches of partitions over several RLMMs, and what ends them."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from uuid import UUID, uuid4

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Connection, Engine, text

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership, all_segments
from services.api.segment_batches import SegmentAddition, SegmentScan
from services.api.watches import HEARTBEAT_S, PartitionUpdate, WatchedPartition, WatchUpdate
from services.common.client_security import PLAINTEXT
from services.common.settings import ServiceSettings
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.reads import watch_reader
from services.rlmm.reads.watch_reader import MAX_PENDING, Reader, Snapshot, Watch, read_changes
from services.rlmm.servicer import add_to_server
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.server.server import Service, start_grpc
from tests.contract.rlmm.segments import add, finished, revision_of, segment
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import PATIENT, eventually

NAME = "tieredstorage.v1.RemoteLogMetadataManager"
MANY = 50
WRITERS = 8
SEGMENTS_OF_WRITER = 20

Watching = Generator[WatchUpdate, None, None]


@pytest.fixture
def other_rlmm(database_url: str) -> Iterator[SqlRemoteLogMetadataManager]:
    """Provide another RLMM over the same database."""
    engine = create_database_engine(database_url, PATIENT)
    yield SqlRemoteLogMetadataManager(engine)
    engine.dispose()


@contextmanager
def watching(rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition) -> Iterator[Watching]:
    with closing(rlmm.watch_partitions([WatchedPartition(tp)])) as updates:
        next(updates)
        yield updates


def next_change(updates: Iterator[WatchUpdate]) -> PartitionUpdate:
    return next(each.partitions[0] for each in updates if each.partitions)


def test_a_watch_that_is_added_to_a_reader_that_has_failed_ends(engine: Engine) -> None:
    reader, watch = Reader(engine), Watch()
    reader.end_all(RetriableRemoteStorageError("the database is away"), "database")
    reader.add(watch, {})
    with pytest.raises(RetriableRemoteStorageError, match="the database is away"):
        watch.wait(0)


def test_a_change_by_one_rlmm_is_soon_seen_by_a_watch_at_another(
    rlmm: OwnRlmm, other_rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    times_s = []
    with watching(other_rlmm, tp) as updates:
        for revision in range(1, 11):
            rlmm.on_partition_leadership_changes([PartitionLeadership(tp, revision)], [], 1)
            began_s = time.monotonic()
            assert next_change(updates).revision == revision
            times_s.append(time.monotonic() - began_s)
    # 0.1 s on a quiet machine; a heartbeat would be later than this.
    assert min(times_s) < HEARTBEAT_S / 2


def test_a_watch_sees_changes_of_its_own_rlmm_without_the_pause_between_reads(
    rlmm: OwnRlmm, tp: TopicIdPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_reader, "READ_INTERVAL_S", 600.0)
    with watching(rlmm, tp) as updates:
        for revision in range(1, 4):
            rlmm.on_partition_leadership_changes([PartitionLeadership(tp, revision)], [], 1)
            # All others are heartbeats.
            assert next_change(islice(updates, 10)).revision == revision


def test_a_heartbeat_stands_still_while_the_changes_cannot_be_read(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    with watching(rlmm, tp) as updates, rlmm.engine.connect() as connection:
        live = next(updates)
        # Readers wait for this lock.
        connection.execute(text("LOCK TABLE events IN ACCESS EXCLUSIVE MODE"))
        first, second = next(updates), next(updates)
        assert first.complete_through_ms - live.complete_through_ms < HEARTBEAT_S * 1000
        assert second.complete_through_ms == first.complete_through_ms
        connection.rollback()
        eventually(lambda: next(updates).complete_through_ms > second.complete_through_ms)


def test_changes_commit_in_another_order_than_they_began(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    tps = [TopicIdPartition(tp.topic_id, tp.topic, number) for number in range(3)]
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 1) for tp in tps], [], 1)
    with (
        reading(rlmm.engine) as read,
        rlmm.engine.connect() as early,
        rlmm.engine.connect() as late,
    ):
        read()
        write_event(early, tps[0])
        write_event(late, tps[1])
        late.commit()
        assert read() == [(1, 2)]
        write_event(late, tps[2])
        assert read() == []
        early.commit()
        assert read() == [(0, 2)]
        late.rollback()
        assert read() == []
        write_event(late, tps[2])
        late.commit()
        assert read() == [(2, 2)]


@contextmanager
def reading(engine: Engine) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    """Yield a function that reads the partition and revision of each new event."""
    options = {"isolation_level": "AUTOCOMMIT"}
    with engine.connect().execution_options(**options) as connection:
        seen, _ = read_changes(connection, None)

        def read() -> list[tuple[int, int]]:
            nonlocal seen
            seen, events = read_changes(connection, seen)
            return [(event.partition, event.revision) for event in events]

        yield read


def write_event(connection: Connection, tp: TopicIdPartition) -> None:
    """Write an event in the transaction of `connection`."""
    connection.execute(
        text(
            "INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, "
            "broker_id) VALUES (:id, :partition, 2, 'LEADERSHIP', 'a', 'c', '', 1)"
        ),
        {"id": tp.topic_id, "partition": tp.partition},
    )


@pytest.mark.parametrize(
    "seen",
    [Snapshot("another server", 3, ()), Snapshot("", 2**61, ())],
    ids=["another server", "a server with fewer transactions"],
)
def test_the_snapshot_of_another_server_is_refused(engine: Engine, seen: Snapshot) -> None:
    with engine.connect() as connection:
        server = connection.scalar(text("SELECT pg_postmaster_start_time()::text"))
        assert isinstance(server, str)
        seen = Snapshot(seen.server or server, seen.next_id, seen.unfinished)
        with pytest.raises(RetriableRemoteStorageError, match="another server"):
            read_changes(connection, seen)


def test_transaction_ids_of_a_restored_database_are_not_read(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    add(rlmm, segment(tp, 0, 9))
    with rlmm.engine.begin() as connection:
        connection.execute(text(f"UPDATE events SET transaction_id = {2**40}"))
    with reading(rlmm.engine) as read:
        assert read() == []
        add(rlmm, segment(tp, 10, 19))
        assert read() == [(0, 2)]


def test_lost_events_change_everything(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    finished(rlmm, tp, 0, 9)
    finished(rlmm, tp, 10, 19)
    with rlmm.engine.begin() as connection:
        connection.execute(text("DELETE FROM events WHERE revision = 2"))
    with closing(rlmm.watch_partitions([WatchedPartition(tp, 1)])) as updates:
        assert next(updates).partitions == (PartitionUpdate(0, 4, everything=True),)


def test_a_watch_ends_by_name_when_its_reader_loses_the_database(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    with watching(rlmm, tp) as updates:
        end_reader(rlmm.engine)
        with pytest.raises(RetriableRemoteStorageError, match=r"changes cannot be read.*watch"):
            list(updates)
    finished(rlmm, tp, 0, 9)
    with closing(rlmm.watch_partitions([WatchedPartition(tp, 0)])) as updates:
        (change,) = next(updates).partitions
        assert (change.revision, len(change.segments)) == (2, 1)


def end_reader(engine: Engine) -> None:
    """End the session that reads for watches."""
    statement = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE '%pg_current_snapshot%' "
        "AND pid <> pg_backend_pid()"
    )
    with engine.connect() as connection:
        assert connection.execute(statement).all() == [(True,)]


def test_a_watcher_that_is_too_slow_is_ended_and_resumes(
    rlmm: OwnRlmm,
    other_rlmm: SqlRemoteLogMetadataManager,
    tp: TopicIdPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.rlmm.reads.watch_reader.MAX_PENDING", 20)
    with watching(rlmm, tp) as slow, watching(rlmm, tp) as quick:
        additions = [SegmentAddition(segment(tp, offset, offset)) for offset in range(15)]
        other_rlmm.add_remote_log_segment_metadata_batch(additions)
        assert next_change(quick).revision == 15
        additions = [SegmentAddition(segment(tp, offset, offset)) for offset in range(15, 30)]
        other_rlmm.add_remote_log_segment_metadata_batch(additions)
        assert next_change(quick).revision == 30
        with pytest.raises(ThrottledError, match="too slow: 20 changes wait"):
            next(slow)
    assert MAX_PENDING > 20
    with closing(rlmm.watch_partitions([WatchedPartition(tp, 0)])) as updates:
        assert next(updates).partitions == (PartitionUpdate(0, 30),)


def test_the_reader_runs_only_while_there_are_watches(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    for _ in range(2):
        with watching(rlmm, tp), watching(rlmm, tp):
            assert readers(rlmm.engine) == 1
        eventually(lambda: readers(rlmm.engine) == 0)


def readers(engine: Engine) -> int:
    statement = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE '%pg_current_snapshot%' AND pid <> pg_backend_pid()"
    )
    with engine.connect() as connection:
        count = connection.scalar(statement)
    assert isinstance(count, int)
    return count


class Served:
    """RLMM over gRPC as its process serves it, with few threads for other calls."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._cleanup = ExitStack()
        service = Service(
            "rlmm",
            NAME,
            partial(add_to_server, rlmm),
            check=lambda: None,
            close=lambda: None,
            watch_methods=[f"/{NAME}/WatchPartitions"],
            watch_threads=MANY,
            end_watches=rlmm.end_watches,
        )
        settings = ServiceSettings(plaintext=True, unary_threads=1, stream_threads=1)
        self.address = start_grpc(service, settings, self._cleanup).address

    def stop(self) -> None:
        """Drain, which waits for active calls for 10 s."""
        self._cleanup.close()


@pytest.fixture
def served(rlmm: OwnRlmm) -> Iterator[Served]:
    made = Served(rlmm)
    yield made
    made.stop()


@pytest.fixture
def client(served: Served) -> Iterator[RemoteLogMetadataManagerClient]:
    with open_channel(served.address, PLAINTEXT) as channel:
        yield RemoteLogMetadataManagerClient(channel, served.address)


@contextmanager
def many_watches(
    client: RemoteLogMetadataManagerClient, tps: Sequence[TopicIdPartition]
) -> Iterator[list[Watching]]:
    watched = [WatchedPartition(tp) for tp in tps]
    watches = [client.watch_partitions(watched) for _ in range(MANY)]
    try:
        for updates in watches:
            next(updates)
        yield watches
    finally:
        for updates in watches:
            updates.close()


@pytest.mark.deep
def test_fifty_watches_take_no_thread_from_other_calls(
    client: RemoteLogMetadataManagerClient, tp: TopicIdPartition
) -> None:
    with many_watches(client, [tp]) as watches:
        finished(client, tp, 0, 9)
        assert revision_of(client, tp) == 2
        assert len(list(client.scan_remote_log_segments(SegmentScan()))) == 1
        for updates in watches:
            while next_change(updates).revision < 2:
                pass
        with (
            closing(client.watch_partitions([WatchedPartition(tp)])) as one_more,
            pytest.raises(ThrottledError, match=r"too many concurrent watch calls \(limit 50\)"),
        ):
            next(one_more)
    assert eventually(lambda: first_of(client, tp)).partitions[0].revision == 2
    eventually(lambda: REGISTRY.get_sample_value("sediment_rlmm_watches") == 0)


@pytest.mark.deep
def test_fifty_watches_get_each_change_of_eight_writers_once(
    rlmm: OwnRlmm, client: RemoteLogMetadataManagerClient, tp: TopicIdPartition
) -> None:
    tps = [TopicIdPartition(tp.topic_id, tp.topic, number) for number in range(WRITERS)]

    def write(own: TopicIdPartition) -> None:
        for number in range(SEGMENTS_OF_WRITER):
            finished(rlmm, own, 10 * number, 10 * number + 9)

    def segments_of(updates: Watching) -> list[UUID]:
        found: list[UUID] = []
        while len(found) < WRITERS * SEGMENTS_OF_WRITER:
            for partition in next(updates).partitions:
                assert not partition.everything
                found += [segment.id for segment in partition.segments]
        return found

    with many_watches(client, tps) as watches, ThreadPoolExecutor(MANY + WRITERS) as pool:
        delivered = pool.map(segments_of, watches)
        list(pool.map(write, tps))
        reported = list(delivered)
    ids = [row.remote_log_segment_id.id for own in tps for row in all_segments(rlmm, own)]
    assert len(ids) == WRITERS * SEGMENTS_OF_WRITER
    for each in reported:
        assert Counter(each) == Counter(ids)


def first_of(client: RemoteLogMetadataManagerClient, tp: TopicIdPartition) -> WatchUpdate:
    """Return the first update of a watch; RLMM sees within a heartbeat that others have ended."""
    with closing(client.watch_partitions([WatchedPartition(tp)])) as updates:
        try:
            return next(updates)
        except ThrottledError as e:
            raise AssertionError(e) from e


def test_watches_do_not_delay_a_drain(
    served: Served, client: RemoteLogMetadataManagerClient, tp: TopicIdPartition
) -> None:
    with closing(client.watch_partitions([WatchedPartition(tp)])) as updates:
        next(updates)
        began_s = time.monotonic()
        served.stop()
        assert time.monotonic() - began_s < 8  # The drain's own limit is 10 s.
        with pytest.raises(RetriableRemoteStorageError):
            list(updates)


def test_a_partition_that_becomes_known_is_watched(client: RemoteLogMetadataManagerClient) -> None:
    tp = TopicIdPartition(UUID(int=uuid4().int), "new", 0)
    with closing(client.watch_partitions([WatchedPartition(tp)])) as updates:
        assert next(updates).partitions == (PartitionUpdate(0, 0),)
        finished(client, tp, 0, 9)
        while next_change(updates).revision < 2:
            pass
