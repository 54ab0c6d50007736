"""The model passes the tests of Kafka's tables and of the contract that it can."""

from collections.abc import Callable
from functools import partial
from itertools import product
from random import Random

import pytest

from services.api.segments import RemoteLogSegmentMetadata
from tests.contract.rlmm.lists import TableB, TableC, TableE
from tests.contract.rlmm.look_ups import OverlapsBeyondKafka, TableA, TableF, TableG
from tests.contract.rlmm.partition_deletion import AfterDeletion, TableD
from tests.contract.rlmm.request_ids import RequestIds
from tests.contract.rlmm.transitions import Fences, Repeats, TableH
from tests.deep.histories.draws import EPOCHS, LAST_OFFSET, Draws
from tests.deep.histories.kafka_cache import KafkaCache
from tests.deep.histories.model import Model
from tests.deep.histories.space import Space


@pytest.fixture
def rlmm() -> Model:
    """Not all of the contract; all that these tests call."""
    return Model()


class TestModel(
    TableA,
    TableB,
    TableC,
    TableD,
    TableE,
    TableF,
    TableG,
    TableH,
    OverlapsBeyondKafka,
    Repeats,
    Fences,
    AfterDeletion,
    RequestIds,
):
    pass


def test_a_search_for_transaction_indexes_misses_none_that_kafkas_finds() -> None:
    """A reader that collects aborted transactions from an offset reads at least those of Kafka's
    search, which goes from segment to segment and ends at a gap.
    """
    more = 0
    for seed in range(100):
        model, space = Model(), Space.of_two_topics()
        draws = Draws(Random(seed), model, space)
        for _ in range(60):
            draws.next().reply(model, space)
        cache = model.partition(space.partitions[0])
        for epoch, offset in product(EPOCHS, range(LAST_OFFSET)):
            ours = _collected(partial(cache.next_with_txn_index, epoch), offset)
            kafkas = _collected(partial(_kafkas_next_with_txn_index, cache, epoch), offset)
            assert kafkas <= ours, (seed, epoch, offset)
            more += len(ours - kafkas)
    assert more > 0


def _collected(search: Callable[[int], RemoteLogSegmentMetadata | None], offset: int) -> set[int]:
    """Return the offsets of all segments that a reader finds one after another."""
    found: set[int] = set()
    while (segment := search(offset)) is not None:
        found.update(range(segment.start_offset, segment.end_offset + 1))
        offset = segment.end_offset + 1
    return found


def _kafkas_next_with_txn_index(
    cache: KafkaCache, epoch: int, offset: int
) -> RemoteLogSegmentMetadata | None:
    segment = cache.segment_for_offset(epoch, offset)
    while segment is not None and segment.txn_idx_empty:
        segment = cache.segment_for_offset(epoch, segment.end_offset + 1)
    return segment
