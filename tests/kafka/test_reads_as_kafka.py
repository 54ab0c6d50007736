"""RLM answers reads as the broker does whose log it serves: the same log, the same answers."""

import random
from collections.abc import Iterator, Sequence

import pytest

from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.offset_queries import (
    EpochQuery,
    OffsetQueries,
    OffsetQuery,
    OffsetService,
    SpecialTime,
)
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
)
from services.records.batches import Batch, BatchError
from services.records.committed import CommittedReader
from tests.data.kafka_log_content import AUDIT, MIXED, ORDERS, PAYMENTS
from tests.harness.broker_answers import BrokerAnswers, broker_answers
from tests.harness.committed_reads import batches_in
from tests.kafka.tiered_broker import TieredBroker

pytestmark = pytest.mark.kafka

TOPICS = (PAYMENTS, ORDERS, MIXED, AUDIT)
READS = 150
TIMES = 60
OFFSET_OUT_OF_RANGE = 1


@pytest.fixture(scope="module")
def shipped(tier: TieredBroker) -> TieredBroker:
    tier.ship(*TOPICS)
    return tier


@pytest.fixture(scope="module")
def names(shipped: TieredBroker) -> list[TopicIdPartition]:
    return sorted(shipped.partitions(*TOPICS), key=str)


@pytest.fixture(params=["on the disk", "in the tier"], scope="module")
def rlm(
    request: pytest.FixtureRequest,
    shipped: TieredBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> OffsetService:
    """RLM over the broker's log, and over one whose rolled segments only the tier has."""
    if request.param == "on the disk":
        return shipped.manager(*shipped.broker.log_dirs)
    return shipped.without_rolled_segments(tmp_path_factory.mktemp("links"))


@pytest.fixture(scope="module")
def kafka(shipped: TieredBroker) -> Iterator[BrokerAnswers]:
    with broker_answers(shipped.broker.bootstrap_servers) as asked:
        yield asked


def whole_batches(data: bytes) -> list[Batch]:
    """Return the batches of a broker's answer, whose last one may be cut off."""
    found: list[Batch] = []
    try:
        for batch in batches_in(data):
            found.append(batch)
    except BatchError:
        return found
    return found


def kept(batches: Sequence[Batch], aborted: Sequence[AbortedTransaction]) -> list[int]:
    reader = CommittedReader()
    reader.add(aborted)
    return [batch.base_offset for batch in batches if not reader.skips(batch)]


def fetch(rlm: OffsetService, wanted: FetchPartition, isolation: IsolationLevel) -> list[FetchPart]:
    return list(rlm.fetch(FetchRequest((wanted,), wanted.max_bytes, isolation)))


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_random_reads_return_the_same_records_and_aborted_transactions(
    rlm: OffsetService,
    kafka: BrokerAnswers,
    names: list[TopicIdPartition],
    isolation: IsolationLevel,
) -> None:
    chance, skipped = random.Random(f"reads {isolation}"), 0
    for _ in range(READS):
        name = chance.choice(names)
        end = kafka.offsets(name, [SpecialTime.LATEST])[0][1]
        offset = chance.randrange(end + 1)
        max_bytes = chance.choice([1, 500, 5_000, 50_000, 1024 * 1024])
        there = kafka.fetch(name, offset, max_bytes, isolation)
        parts = fetch(rlm, FetchPartition(name, offset, max_bytes), isolation)
        where = f"{name} at {offset}, {max_bytes} bytes"
        if there.error == OFFSET_OUT_OF_RANGE:
            assert [part.error for part in parts] == [FetchError.OFFSET_OUT_OF_RANGE], where
            continue
        assert there.error == 0, where
        assert {part.error for part in parts} == {FetchError.NONE}, where
        bounds = (parts[0].high_watermark, parts[0].last_stable_offset)
        assert bounds == (there.high_watermark, there.last_stable_offset), where
        here = b"".join(part.record_batches for part in parts)
        # A broker's answer ends with the segment, RLM's does not.
        same = whole_batches(there.records)
        size_bytes = sum(batch.size_bytes for batch in same)
        assert here[:size_bytes] == there.records[:size_bytes], where
        assert bool(here) == bool(same), where
        aborted = [each for part in parts for each in part.aborted_transactions]
        committed = kept(same, there.aborted)
        assert kept(same, aborted) == committed, where
        skipped += len(same) - len(committed)
        covered = same[-1].last_offset + 1 if same else 0
        begun = {each for each in aborted if each.first_offset < covered}
        assert begun <= set(there.aborted), where
    assert skipped > 0


def test_random_times_and_special_values_find_the_same_offsets(
    rlm: OffsetService, kafka: BrokerAnswers, names: list[TopicIdPartition]
) -> None:
    chance = random.Random("times")
    for name in names:
        greatest, last, _ = kafka.offsets(name, [SpecialTime.MAX_TIMESTAMP])[0]
        if last < 0:
            continue
        first = kafka.offsets(name, [0])[0][0]
        times = [chance.randrange(first - 1, greatest + 2) for _ in range(TIMES // len(names) + 5)]
        asked = [SpecialTime.EARLIEST, SpecialTime.LATEST, first, greatest, greatest + 1, *times]
        for isolation in IsolationLevel:
            queries = tuple(OffsetQuery(name, time_ms) for time_ms in asked)
            answers = rlm.list_offsets(OffsetQueries(queries, isolation))
            expected = kafka.offsets(name, asked, isolation)
            for time_ms, answer, there in zip(asked, answers, expected, strict=True):
                epoch = -1 if answer.leader_epoch is None else answer.leader_epoch
                here = (answer.timestamp_ms, answer.offset, epoch)
                assert (answer.error, here) == (FetchError.NONE, there), (name, time_ms)


def test_local_special_values_are_those_of_the_log(
    shipped: TieredBroker, kafka: BrokerAnswers, names: list[TopicIdPartition]
) -> None:
    rlm = shipped.manager(*shipped.broker.log_dirs)
    for name in names:
        asked = [SpecialTime.MAX_TIMESTAMP, SpecialTime.EARLIEST_LOCAL]
        queries = tuple(OffsetQuery(name, time_ms) for time_ms in asked)
        answers = rlm.list_offsets(OffsetQueries(queries))
        expected = kafka.offsets(name, asked)
        here = [
            (a.timestamp_ms, a.offset, -1 if a.leader_epoch is None else a.leader_epoch)
            for a in answers
        ]
        assert here == expected, name


def test_leader_epochs_end_at_the_same_offsets(
    rlm: OffsetService, kafka: BrokerAnswers, names: list[TopicIdPartition]
) -> None:
    epochs = range(8)
    for name in names:
        answers = rlm.offsets_for_leader_epochs(tuple(EpochQuery(name, e) for e in epochs))
        ends = [answer.end or EpochEnd(-1, -1) for answer in answers]
        here = [(end.leader_epoch, end.end_offset) for end in ends]
        assert here == kafka.epoch_ends(name, epochs), name


def test_a_reader_of_another_history_diverges_at_the_same_offset(
    rlm: OffsetService, kafka: BrokerAnswers, names: list[TopicIdPartition]
) -> None:
    isolation = IsolationLevel.READ_UNCOMMITTED
    for name in names:
        end = kafka.offsets(name, [SpecialTime.LATEST])[0][1]
        for offset in range(0, end, max(end // 7, 1)):
            for last in range(6):
                there = kafka.fetch(name, offset, 1, isolation, last)
                wanted = FetchPartition(name, offset, 1, last_fetched_epoch=last)
                part = fetch(rlm, wanted, isolation)[0]
                diverging = part.diverging_epoch
                here = diverging and (diverging.leader_epoch, diverging.end_offset)
                is_out = part.error is FetchError.OFFSET_OUT_OF_RANGE
                assert (is_out, here) == (
                    there.error == OFFSET_OUT_OF_RANGE,
                    there.diverging,
                ), (name, offset, last)
