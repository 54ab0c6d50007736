"""RLM answers reads as the broker does whose log it serves: the same log, the same answers."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.offset_queries import (
    EpochQuery,
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
from services.rlm.manager import BrokerRemoteLogManager
from tests.data.kafka_log_content import AUDIT, MIXED, ORDERS, PAYMENTS
from tests.harness.broker_answers import BrokerAnswers, BrokerFetch, broker_answers
from tests.harness.committed_reads import batches_in
from tests.harness.doors import DOORS, Door, opened
from tests.kafka.tiered_broker import TieredBroker

pytestmark = pytest.mark.kafka

TOPICS = (PAYMENTS, ORDERS, MIXED, AUDIT)
READS = [75, pytest.param(1000, marks=pytest.mark.long)]
"""Of each isolation level, for each door and each place of the log."""
TIMES = [60, pytest.param(500, marks=pytest.mark.long)]
LIMITS = (0, 1, 61, 500, 5_000, 50_000, 1024 * 1024, 2**31 - 1)
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
) -> BrokerRemoteLogManager:
    """RLM over the broker's log, and over one whose rolled segments only the tier has."""
    if request.param == "on the disk":
        return shipped.manager(*shipped.broker.log_dirs)
    return shipped.without_rolled_segments(tmp_path_factory.mktemp("links"))


@pytest.fixture(params=DOORS, scope="module")
def door(request: pytest.FixtureRequest, rlm: BrokerRemoteLogManager) -> Iterator[Door]:
    with opened(request.param, rlm) as served:
        yield served


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


def ready(door: Door, there: BrokerFetch, *request: Any, **limits: Any) -> BrokerFetch:
    """Read through a door; again while the store is slower than RLM waits: the machine is busy."""
    while True:
        here = door.fetch(*request, **limits)
        if here.records or here.error or not whole_batches(there.records):
            return here


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_random_reads_return_the_same_records_and_aborted_transactions(
    door: Door,
    kafka: BrokerAnswers,
    names: list[TopicIdPartition],
    isolation: IsolationLevel,
    reads: int,
) -> None:
    chance, skipped = random.Random(f"reads {isolation}"), 0
    ends = {name: kafka.offsets(name, [SpecialTime.LATEST])[0][1] for name in names}
    for _ in range(reads):
        name = chance.choice(names)
        offset = chance.randrange(ends[name] + 2)
        max_bytes, of_partition = chance.choice(LIMITS), chance.choice(LIMITS)
        request = name, offset, max_bytes, isolation
        there = kafka.fetch(*request, partition_max_bytes=of_partition)
        here = ready(door, there, *request, partition_max_bytes=of_partition)
        where = f"{name} at {offset}, {max_bytes} bytes, {of_partition} of the partition"
        assert here.error == there.error, where
        if there.error == OFFSET_OUT_OF_RANGE:
            continue
        assert there.error == 0, where
        bounds = (here.high_watermark, here.last_stable_offset)
        assert bounds == (there.high_watermark, there.last_stable_offset), where
        # A broker's answer ends with the segment, RLM's does not.
        same = whole_batches(there.records)
        size_bytes = sum(batch.size_bytes for batch in same)
        assert here.records[:size_bytes] == there.records[:size_bytes], where
        read = whole_batches(here.records)
        assert len(here.records) == sum(batch.size_bytes for batch in read), where
        assert bool(read) == bool(same), where
        if len(read) > 1:
            assert len(here.records) <= max(min(max_bytes, of_partition), 1), where
        committed = kept(same, there.aborted)
        assert kept(same, here.aborted) == committed, where
        skipped += len(same) - len(committed)
        covered = same[-1].last_offset + 1 if same else 0
        begun = {each for each in here.aborted if each.first_offset < covered}
        assert begun <= set(there.aborted), where
    assert skipped > 0


@pytest.mark.parametrize("times", TIMES)
def test_random_times_and_special_values_find_the_same_offsets(
    door: Door, kafka: BrokerAnswers, names: list[TopicIdPartition], times: int
) -> None:
    chance = random.Random("times")
    for name in names:
        greatest, last, _ = kafka.offsets(name, [SpecialTime.MAX_TIMESTAMP])[0]
        if last < 0:
            continue
        first = kafka.offsets(name, [0])[0][0]
        found = [chance.randrange(first - 1, greatest + 2) for _ in range(times // len(names) + 5)]
        asked = [SpecialTime.EARLIEST, SpecialTime.LATEST, first, greatest, greatest + 1, *found]
        for isolation in IsolationLevel:
            here = door.offsets(name, asked, isolation)
            there = kafka.offsets(name, asked, isolation)
            for time_ms, answer, expected in zip(asked, here, there, strict=True):
                assert answer == expected, (name, time_ms)


@pytest.mark.parametrize("opened_door", DOORS)
def test_local_special_values_are_those_of_the_log(
    shipped: TieredBroker, kafka: BrokerAnswers, names: list[TopicIdPartition], opened_door: str
) -> None:
    asked = [SpecialTime.MAX_TIMESTAMP, SpecialTime.EARLIEST_LOCAL]
    with opened(opened_door, shipped.manager(*shipped.broker.log_dirs)) as door:
        for name in names:
            for isolation in IsolationLevel:
                expected = kafka.offsets(name, asked, isolation)
                assert door.offsets(name, asked, isolation) == expected, name


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
