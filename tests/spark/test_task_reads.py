"""Test what the tasks of a query read of a tier whose indexes or headers were lost or changed."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from services.api.errors import CorruptSegmentError
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from services.rsm.verification import VerifyReads
from spark_jobs.records.options import records_options
from spark_jobs.records.plan import Extent, pieces_of
from spark_jobs.records.reading import read_pieces
from spark_jobs.records.tier import TierReader, plan_tasks, whole_range
from tests.behaviour import test_changed_headers, test_rebuilt_indexes
from tests.behaviour.test_changed_headers import OUTSIDE_THE_CRC, SECOND, bits_of, flip
from tests.behaviour.test_rebuilt_indexes import NAME, damaged, indexes_of, lost, new_rsm
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME as OF_STACK

pytestmark = pytest.mark.spark

transactions = test_rebuilt_indexes.shipped
changed = test_changed_headers.shipped

SERVICES = {"rlmm": "localhost:1", "rsm": "localhost:2"}
"""What the options demand; the tests have both in this process."""


@pytest.mark.parametrize("harm", [lost, damaged])
def test_sparks_source_reads_the_same_without_the_indexes(
    transactions: Stack, harm: Callable[[Path], None]
) -> None:
    """A lost transaction index must not count as one without aborted transactions."""
    truth = spark_rows(transactions)
    for segment in transactions.segments(NAME)[1::2]:
        harm(indexes_of(transactions, segment))
    assert spark_rows(transactions) == truth


def spark_rows(stack: Stack) -> list[object]:
    """Read the committed records as the tasks of a Spark query do, from each of some times on."""
    tier, found = TierReader(stack.rlmm, new_rsm(stack)), list[object]()
    for time_ms in (0, *(each.max_timestamp_ms for each in stack.segments(NAME))):
        _, options = records_options(
            {
                **SERVICES,
                "subscribe": NAME.topic,
                "startingTimestamp": str(time_ms),
                "kafka.isolation.level": "read_committed",
            }
        )
        tasks = plan_tasks(tier, options, [whole_range(tier, NAME, options)])
        found += [
            rows.to_pylist() for task in tasks for rows in read_pieces(tier.rsm, options, task)
        ]
    return found


@pytest.mark.parametrize("field", OUTSIDE_THE_CRC)
@pytest.mark.parametrize(
    ("verify_reads", "named"), [("always", "chunk 0 of "), ("off", f"bytes {SECOND} to ")]
)
def test_sparks_tasks_end_at_a_changed_header(
    stack: Stack, changed: Path, field: str, verify_reads: VerifyReads, named: str
) -> None:
    flip(changed, bits_of(field)[-3])
    segment = stack.segments()[0]
    _, options = records_options({"rlmm": "h:1", "rsm": "h:2", "subscribe": OF_STACK.topic})
    extent = Extent(segment, 5, segment.end_offset)
    settings = RsmSettings(backend="filesystem", directory=stack.objects, verify_reads=verify_reads)
    with closing(build_manager(settings)) as rsm:
        pieces = [*pieces_of(extent, (), None, segment.segment_size_in_bytes)]
        with pytest.raises(CorruptSegmentError, match=f"{named}.*`sediment scrub --topic"):
            list(read_pieces(rsm, options, pieces))
