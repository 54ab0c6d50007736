"""Test offsets by time, by a special value and by leader epoch, over a log of Kafka's."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from threading import Barrier, Event
from typing import Any

import pytest
import zstandard

from demos.stage import link_log_dir
from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.offset_queries import (
    EpochQuery,
    OffsetAnswer,
    OffsetQueries,
    OffsetQuery,
    OffsetService,
    SpecialTime,
)
from services.api.remote_log_manager import FetchError, IsolationLevel
from services.api.remote_storage_manager import IndexType
from services.common.inflate import Codec
from services.records import decode
from services.rlm.fetch.reads import ReadLimits
from services.rlm.kafka_log.partition_dir import list_segments, read_lineage
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from tests.harness.committed_reads import batches_in
from tests.harness.databases import Databases
from tests.harness.eventually import eventually
from tests.harness.ship_stack import (
    BUNDLED,
    Stack,
    bundled_name,
    bytes_of,
    lose_rolled_segments,
    running_stack,
)
from tests.harness.troubles import GIVE_UP_S, FailingRlmm, Hang, TroubledPartition
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import (
    NAME,
    PartitionFiles,
    batch,
    high_watermarks,
    three_segments,
)

TOPICS = ("payments", "mixed-codecs", "orders.eu-west", "clicks")
NAMES = [bundled_name(topic) for topic in TOPICS]
EVERYWHERE = ("disk", "half", "deleted", "active", "tier")
Timed = list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def shipped(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, Path]]:
    """Partition 0 of some bundled topics, with every rolled segment in the tier."""
    directory = tmp_path_factory.mktemp("shipped")
    link_log_dir(BUNDLED, directory / "disk")
    for folder in (directory / "disk").iterdir():
        topic, _, number = folder.name.rpartition("-")
        if folder.is_dir() and (topic not in TOPICS or number != "0"):
            shutil.rmtree(folder)
    url = databases.take()
    with running_stack(url, directory / "objects") as stack:
        stack.ship(directory / "disk")
        for place, keep in (("half", 2), ("deleted", 2), ("active", None)):
            link_log_dir(directory / "disk", directory / place)
            for folder in (directory / place).glob("*-0"):
                logs = sorted(folder.glob("*.log"))
                for log in logs[: len(logs) // keep if keep else -1]:
                    for file in folder.glob(f"{log.stem}.*"):
                        file.unlink()
        delete_in_first_segments(directory / "deleted")
        yield stack, directory
    databases.give_back(url)


def delete_in_first_segments(log_dir: Path) -> None:
    """Raise each log's start to the end of its first segment, as DeleteRecords does."""
    starts = [
        f"{folder.name[:-2]} 0 {list_segments(folder)[1].base_offset - 1}\n"
        for folder in log_dir.glob("*-0")
    ]
    checkpoint = log_dir / "log-start-offset-checkpoint"
    checkpoint.unlink()  # a hard link
    checkpoint.write_text(f"0\n{len(starts)}\n{''.join(starts)}")


def rlm_of(shipped: tuple[Stack, Path], place: str) -> OffsetService:
    stack, directory = shipped
    return stack.tier_reader() if place == "tier" else stack.rlm(directory / place)


def records_of(folder: Path) -> Timed:
    """Return (time, offset, leader epoch) of each record of a log, control records too."""
    return [
        (record.timestamp_ms, record.offset, each.leader_epoch)
        for each in batches_in(bytes_of(folder))
        for record in decode.records_of(each, 2**30)
    ]


def find(
    rlm: OffsetService,
    name: TopicIdPartition,
    time_ms: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> OffsetAnswer:
    (found,) = rlm.list_offsets(OffsetQueries((OffsetQuery(name, time_ms),), isolation))
    assert found.error is FetchError.NONE, found
    return found


def place_of(found: OffsetAnswer) -> tuple[int, int | None]:
    return found.offset, found.leader_epoch


@pytest.mark.parametrize("place", EVERYWHERE)
@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_time_finds_the_first_record_of_it_or_later(
    shipped: tuple[Stack, Path], name: TopicIdPartition, place: str
) -> None:
    _, directory = shipped
    rlm = rlm_of(shipped, place)
    log_start = find(rlm, name, SpecialTime.EARLIEST).offset
    end = find(rlm, name, SpecialTime.LATEST).offset
    records = [r for r in records_of(directory / "disk" / f"{name.topic}-0") if r[1] < end]
    times = sorted({time_ms for time_ms, _, _ in records})
    asked = [times[0] - 1, *times[:: max(len(times) // 12, 1)], times[-1], times[-1] + 1]
    queries = tuple(OffsetQuery(name, time_ms) for time_ms in asked)
    answers = rlm.list_offsets(OffsetQueries(queries))
    for time_ms, answer in zip(asked, answers, strict=True):
        expected = next(
            (r for r in records if r[0] >= time_ms and r[1] >= log_start), (-1, -1, None)
        )
        assert (answer.error, answer.timestamp_ms, answer.offset, answer.leader_epoch) == (
            FetchError.NONE,
            *expected,
        )


@pytest.mark.parametrize("place", ["disk", "half", "active"])
@pytest.mark.parametrize("name", NAMES, ids=str)
def test_special_values_beside_a_log(
    shipped: tuple[Stack, Path], name: TopicIdPartition, place: str
) -> None:
    stack, directory = shipped
    rlm = rlm_of(shipped, place)
    folder = directory / place / f"{name.topic}-0"
    records = records_of(directory / "disk" / f"{name.topic}-0")
    here = records_of(folder)
    lineage = read_lineage(directory / "disk" / f"{name.topic}-0")
    tiered = stack.segments(name)[-1].end_offset
    start = find(rlm, name, SpecialTime.EARLIEST)
    assert start.leader_epoch == lineage.epoch_for_offset(start.offset)
    assert start.timestamp_ms == -1
    latest = find(rlm, name, SpecialTime.LATEST)
    assert place_of(latest) == (records[-1][1] + 1, lineage.latest_epoch)
    first_local = max(list_segments(folder)[0].base_offset, start.offset)
    assert place_of(find(rlm, name, SpecialTime.EARLIEST_LOCAL)) == (
        first_local,
        lineage.epoch_for_offset(first_local),
    )
    assert place_of(find(rlm, name, SpecialTime.LATEST_TIERED)) == (
        tiered,
        lineage.epoch_for_offset(tiered),
    )
    assert place_of(find(rlm, name, SpecialTime.EARLIEST_PENDING_UPLOAD)) == (
        tiered + 1,
        lineage.epoch_for_offset(tiered + 1),
    )
    greatest = max(time_ms for time_ms, _, _ in here)
    expected = next(r for r in here if r[0] == greatest)
    found = find(rlm, name, SpecialTime.MAX_TIMESTAMP)
    assert (found.timestamp_ms, found.offset, found.leader_epoch) == expected


def test_special_values_of_the_tier_alone(shipped: tuple[Stack, Path]) -> None:
    stack, _ = shipped
    name = NAMES[0]
    rlm, tiered = rlm_of(shipped, "tier"), stack.segments(name)[-1].end_offset
    found = {special: find(rlm, name, special).offset for special in SpecialTime}
    assert found == {
        SpecialTime.LATEST: tiered + 1,
        SpecialTime.EARLIEST: 0,
        SpecialTime.MAX_TIMESTAMP: -1,
        SpecialTime.EARLIEST_LOCAL: tiered + 1,
        SpecialTime.LATEST_TIERED: tiered,
        SpecialTime.EARLIEST_PENDING_UPLOAD: tiered + 1,
    }


def test_nothing_is_tiered_yet(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rlm = stack.rlm()
    assert place_of(find(rlm, NAME, SpecialTime.LATEST_TIERED)) == (-1, None)
    assert place_of(find(rlm, NAME, SpecialTime.EARLIEST_PENDING_UPLOAD)) == (0, 0)


def test_local_answers_need_no_database(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, FailingRlmm(stack.rlmm))
    assert find(rlm, NAME, SpecialTime.LATEST).offset == 25
    assert find(rlm, NAME, SpecialTime.EARLIEST_LOCAL).offset == 0
    (answer,) = rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, SpecialTime.EARLIEST),)))
    assert answer.error is FetchError.TIERED_STORAGE_NOT_AVAILABLE


def test_what_is_not_found_in_time_is_named(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rlm = stack.rlm(limits=RlmLimits(read=ReadLimits(list_offsets_timeout_s=0.0)))
    (answer,) = rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, SpecialTime.LATEST),)))
    assert answer.error is FetchError.REQUEST_TIMED_OUT


def test_a_query_that_needs_no_tier_does_not_wait_for_the_others(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    other = TopicIdPartition(NAME.topic_id, NAME.topic, 1)
    hang = Hang()
    names = frozenset({"list_remote_log_segments", "partition_state"})
    rlmm: Any = TroubledPartition(stack.rlmm, other, names, hang)
    limits = RlmLimits(read=ReadLimits(threads=1))
    rlm = stack.rlm(rlmm=rlmm, limits=limits)
    queries = OffsetQueries(
        (
            OffsetQuery(other, SpecialTime.EARLIEST),
            OffsetQuery(NAME, SpecialTime.LATEST),
            OffsetQuery(other, SpecialTime.EARLIEST),
            OffsetQuery(NAME, SpecialTime.EARLIEST_LOCAL),
        ),
        timeout_ms=3000,
    )
    try:
        late, end, later, start = rlm.list_offsets(queries)
    finally:
        hang.let_go()
    assert (end.error, end.offset) == (FetchError.NONE, 25)
    assert (start.error, start.offset) == (FetchError.NONE, 0)
    assert {late.error, later.error} == {FetchError.REQUEST_TIMED_OUT}
    names_of_answers = [answer.topic_id_partition for answer in (late, end, later, start)]
    assert names_of_answers == [query.topic_id_partition for query in queries.queries]


def test_partitions_are_searched_in_parallel(shipped: tuple[Stack, Path]) -> None:
    stack, _ = shipped
    all_at_once = Barrier(len(NAMES), timeout=GIVE_UP_S)

    class Meeting(Wrapper[Any]):
        """The real RSM, which reads a time index only if a search of each partition waits."""

        def fetch_index(self, *args: Any, **options: Any) -> Iterator[bytes]:
            if args[1] is IndexType.TIMESTAMP:
                all_at_once.wait()
            content: Iterator[bytes] = self.real.fetch_index(*args, **options)
            return content

    queries = tuple(OffsetQuery(name, 0) for name in NAMES)
    answers = stack.tier_reader(rsm=Meeting(stack.rsm)).list_offsets(OffsetQueries(queries))
    assert [answer.topic_id_partition for answer in answers] == NAMES
    assert answers == stack.tier_reader().list_offsets(OffsetQueries(queries))


def test_a_search_outlasts_a_late_store(shipped: tuple[Stack, Path]) -> None:
    stack, _ = shipped
    name, reads_late = NAMES[0], [Event(), Event()]

    def be_late() -> None:
        reads_late.pop().wait(0.3)

    late = TroubledPartition(stack.rsm, name, frozenset({"fetch_log_segment"}), be_late)
    limits = RlmLimits(read=ReadLimits(wait_s=0.01))
    found = find(stack.tier_reader(rsm=late, limits=limits), name, 0)
    assert found == find(stack.tier_reader(), name, 0)
    assert len(reads_late) == 1, "one read, for which the search waited"


def test_errors_are_of_their_query_alone(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    files.epochs((0, 0), (3, 10))
    rlm = stack.rlm()
    unknown = TopicIdPartition(NAME.topic_id, NAME.topic, 7)
    latest = SpecialTime.LATEST
    queries = (
        OffsetQuery(NAME, latest, 2),
        OffsetQuery(NAME, latest, 4),
        OffsetQuery(unknown, latest),
        OffsetQuery(NAME, latest, 3),
        OffsetQuery(NAME, 1_000),
    )
    answers = rlm.list_offsets(OffsetQueries(queries))
    assert [answer.error for answer in answers] == [
        FetchError.FENCED_LEADER_EPOCH,
        FetchError.UNKNOWN_LEADER_EPOCH,
        FetchError.UNKNOWN_TOPIC_ID,
        FetchError.NONE,
        FetchError.CORRUPT_MESSAGE,  # its records are not Kafka's
    ]
    assert [answer.offset for answer in answers] == [-1, -1, -1, 25, -1]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_search_in_a_batch_of_millions_ends_with_its_time(stack: Stack, is_local: bool) -> None:
    """All records are older than the batch says."""
    files = PartitionFiles(stack.log_dir)
    record = b"\x0c\0\0\0\1\1\0"
    payload = zstandard.compress(record * 5_000_000)
    files.segment(
        0, [batch(0, 5_000_000, payload=payload, attributes=int(Codec.ZSTD), max_timestamp_ms=2000)]
    )
    files.file(0, ".timeindex").write_bytes(pack(">qi", 2000, 4_999_999))
    files.snapshot(5_000_000)
    files.segment(5_000_000, [batch(5_000_000)])
    stack.ship()
    if not is_local:
        lose_rolled_segments(stack.log_dir)
    rlm = stack.rlm()

    def found(time_ms: int) -> OffsetAnswer:
        queries = OffsetQueries((OffsetQuery(NAME, time_ms),), timeout_ms=300)
        return rlm.list_offsets(queries)[0]

    before_s = time.process_time()
    assert found(1500).error is FetchError.REQUEST_TIMED_OUT
    eventually(lambda: rlm.tier_calls.is_idle)
    assert time.process_time() - before_s < 0.6
    assert (found(1000).timestamp_ms, found(1000).offset) == (1000, 0)


@pytest.mark.parametrize("time_ms", [-7, -100])
def test_an_unknown_special_value_is_refused(time_ms: int) -> None:
    with pytest.raises(InvalidRequestError, match="timestamp_ms"):
        OffsetQuery(NAME, time_ms)


def test_the_end_of_each_leader_epoch(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    files.epochs((1, 0), (3, 10), (5, 20))
    stack.ship()
    queries = tuple(EpochQuery(NAME, epoch) for epoch in range(7))
    log_ends = [EpochEnd(0, 0), EpochEnd(1, 10), EpochEnd(1, 10), EpochEnd(3, 20)]
    log_ends += [EpochEnd(3, 20), EpochEnd(5, 25)]
    answers = stack.rlm().offsets_for_leader_epochs(queries)
    assert [answer.end for answer in answers] == [*log_ends, None]
    answers = stack.tier_reader().offsets_for_leader_epochs(queries)
    tier_ends = [EpochEnd(0, 0), EpochEnd(1, 10), EpochEnd(1, 10), EpochEnd(3, 20)]
    assert [answer.end for answer in answers] == [*tier_ends, None, None, None]


def test_a_record_at_the_high_watermark_is_not_found(stack: Stack, log_dir: Path) -> None:
    log_dir /= "kafka"
    link_log_dir(BUNDLED, log_dir)
    name = bundled_name("payments")
    time_ms, _, _ = max(records_of(log_dir / "payments-0"))
    first = find(stack.rlm(log_dir), name, time_ms).offset
    high_watermarks(log_dir, {(name.topic, name.partition): first + 1})
    assert find(stack.rlm(log_dir), name, time_ms).offset == first
    high_watermarks(log_dir, {(name.topic, name.partition): first})
    assert find(stack.rlm(log_dir), name, time_ms) == OffsetAnswer(name)
