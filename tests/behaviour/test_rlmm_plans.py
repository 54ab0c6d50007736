"""Test that the cost of RLMM's reads does not depend on the length of a partition's history.

By the plans that PostgreSQL makes for them, and by the pages that it touches.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection

from services.api.segment_batches import SegmentScan
from services.rlmm.database import epoch_index
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.limits import Page
from services.rlmm.operations import verification_ages
from services.rlmm.reads import listings, lookups, scans, watch_reader
from services.rlmm.reads.listings import PartitionQuery, SegmentQuery, page_statement
from tests.contract.rlmm.segments import PARTITION_STARTED
from tests.harness.local_servers import DatabaseServer
from tests.harness.rlmm_history import OFFSETS_PER_SEGMENT, LongHistory, store_long_history

SHORT, LONG = 1_000, 200_000
MAX_MORE_BUFFERS = 16
CLASSES = 19
"""Of lengths of segments, by their digits."""
FORBIDDEN = frozenset({"Seq Scan", "Sort", "Incremental Sort", "Bitmap Heap Scan"})

pytestmark = pytest.mark.deep


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a statement."""

    buffers: int
    """Pages of 8 KiB, each as often as it was touched."""
    rows_read: int
    nodes: tuple[str, ...]


@pytest.fixture(scope="module")
def histories(postgres: DatabaseServer, migrated_database: str) -> Iterator[dict[int, LongHistory]]:
    """Provide histories of SHORT and LONG segments, each in a database of its own, never
    vacuumed.
    """
    names = {count: f"history_{count}_{uuid.uuid4().hex}" for count in (SHORT, LONG)}
    made = {}
    for count, name in names.items():
        url = postgres.create_database(name, template=migrated_database)
        made[count] = store_long_history(url, count)
        made[count].execute(
            "ALTER TABLE segments SET (autovacuum_enabled = off)",
            "ALTER TABLE segment_epochs SET (autovacuum_enabled = off)",
        )
    yield made
    for name in names.values():
        postgres.drop_database(name)


@pytest.fixture(params=["without statistics", "analyzed"], scope="module")
def any_statistics(
    request: pytest.FixtureRequest, histories: dict[int, LongHistory]
) -> dict[int, LongHistory]:
    if request.param == "analyzed":
        for history in histories.values():
            history.analyze()
    return histories


def look_up(history: LongHistory, statement: str, offset: int) -> Cost:
    """Return the cost of the plan that RLMM's sessions keep for the statement, whatever its
    values.
    """
    types = {"topic_id": "uuid", "partition": "int", "leader_epoch": "int", "offset": "bigint"}
    for number, name in enumerate(types, start=1):
        statement = statement.replace(f"%({name})s", f"${number}")
    engine = create_database_engine(history.database_url)
    tp = history.tp
    with engine.connect() as connection:
        connection.exec_driver_sql(f"PREPARE look_up({', '.join(types.values())}) AS {statement}")
        cost = explain(connection, f"EXECUTE look_up('{tp.topic_id}', {tp.partition}, 0, {offset})")
    engine.dispose()
    return cost


def list_from(history: LongHistory, min_offset: int, leader_epoch: int | None) -> Cost:
    query = SegmentQuery(history.tp, leader_epoch, (), min_offset)
    engine = create_database_engine(history.database_url)
    statement, values = page_statement(query, None, Page(query.fingerprint(), 10, None))
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        cost = explain(connection, psycopg.ClientCursor(driver).mogrify(statement, values))
    engine.dispose()
    return cost


def change(history: LongHistory, statement: str) -> Cost:
    """Return the cost of a statement for a segment in the middle, rolled back."""
    segment = {
        "topic_id": str(history.tp.topic_id),
        "partition": history.tp.partition,
        "segment_id": str(UUID(int=history.count // 2)),
    }
    statement = statement.replace("%(rows)s", "$1")
    engine = create_database_engine(history.database_url)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"PREPARE change(json) AS {statement}")
        cost = explain(connection, f"EXECUTE change('{json.dumps([segment])}')")
        connection.rollback()
    engine.dispose()
    return cost


def read_of_watches(history: LongHistory) -> Cost:
    """Return the cost of a read of changes when there are none, with an event for each segment."""
    events = """
        INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, broker_id,
            transaction_id)
        SELECT %(topic_id)s, %(partition)s, n, 'SEGMENT', '', '', '', 1, n
        FROM generate_series(1, %(count)s) AS n"""
    values = {"topic_id": history.tp.topic_id, "partition": history.tp.partition}
    statement = watch_reader.CHANGES.replace("%(next_id)s", "$1").replace("%(unfinished)s", "$2")
    engine = create_database_engine(history.database_url)
    with engine.connect() as connection:
        connection.exec_driver_sql(events, {**values, "count": history.count})
        connection.exec_driver_sql(f"PREPARE changes(bigint, bigint[]) AS {statement}")
        cost = explain(connection, f"EXECUTE changes({2**40}, '{{{2**41}}}')")
        connection.rollback()
    engine.dispose()
    return cost


def explain(connection: Connection, statement: str) -> Cost:
    [reported] = connection.exec_driver_sql(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    ).scalar_one()
    nodes = list(flattened(reported["Plan"]))
    return Cost(
        reported["Plan"]["Shared Hit Blocks"] + reported["Plan"]["Shared Read Blocks"],
        int(sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes)),
        tuple(node["Node Type"] for node in nodes),
    )


def flattened(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from flattened(child)


def require_equal_costs(
    costs: Sequence[Cost],
    forbidden: AbstractSet[str] = FORBIDDEN,
    more_buffers: int = MAX_MORE_BUFFERS,
) -> None:
    """Compare the plan of the short history with that of the long one."""
    short, long = costs
    assert not forbidden & {*short.nodes, *long.nodes}, (short, long)
    assert abs(long.buffers - short.buffers) <= more_buffers, (short, long)
    assert long.rows_read <= short.rows_read + MAX_MORE_BUFFERS, (short, long)


OFFSETS: dict[str, Callable[[LongHistory], int]] = {
    "hit": lambda history: history.end_offset // 4,
    "first offset": lambda _: 0,
    "hole": lambda history: hole_of(history) + 5,
    "past the end": lambda history: history.end_offset + 1,
    "far past the end": lambda history: history.end_offset * 1_000,
}


PAGE = Page(PartitionQuery("", (), "").fingerprint(), 100, None)
ALL_PARTITIONS: dict[str, tuple[str, dict[str, object]]] = {
    "listing": listings.partition_statement(PartitionQuery("", (), ""), PAGE),
    "listing of a state": listings.partition_statement(
        PartitionQuery("", (PARTITION_STARTED,), ""), PAGE
    ),
    "scan": (scans._statement(["start_offset"]), scans._parameters(SegmentScan(), scans._START)),
    "ages": (verification_ages.AGES, {}),
}


def hole_of(history: LongHistory) -> int:
    return history.count // 2 * OFFSETS_PER_SEGMENT


@pytest.fixture(scope="module")
def with_a_hole(any_statistics: dict[int, LongHistory]) -> dict[int, LongHistory]:
    for history in any_statistics.values():
        history.execute(
            "UPDATE segment_epochs SET referenced = false WHERE topic_id = %(topic_id)s"
            f" AND partition = %(partition)s AND start_offset = {hole_of(history)}",
        )
    return any_statistics


@pytest.mark.parametrize("search", ["REFERENCED_FOR_OFFSET", "SEGMENT_FOR_OFFSET"])
@pytest.mark.parametrize("where", OFFSETS)
def test_a_look_up_costs_the_same_in_any_history(
    with_a_hole: dict[int, LongHistory], where: str, search: str
) -> None:
    statement, offset_in = getattr(lookups, search), OFFSETS[where]
    require_equal_costs([look_up(e, statement, offset_in(e)) for e in with_a_hole.values()])


@pytest.mark.parametrize("where", ["first offset", "hit", "hole", "past the end"])
def test_the_next_transaction_index_costs_the_same_in_any_history(
    with_a_hole: dict[int, LongHistory], where: str
) -> None:
    costs = [
        look_up(history, lookups.NEXT_WITH_TXN_INDEX, OFFSETS[where](history))
        for history in with_a_hole.values()
    ]
    # What is sorted is one segment of each class of lengths.
    require_equal_costs(costs, forbidden={"Seq Scan"})


@pytest.mark.parametrize("step", [*epoch_index.PUBLISH, epoch_index.UNPUBLISH, epoch_index.DELETE])
def test_a_finish_and_a_deletion_cost_the_same_in_any_history(
    any_statistics: dict[int, LongHistory], step: str
) -> None:
    costs = [change(history, step) for history in any_statistics.values()]
    require_equal_costs(costs, forbidden={"Seq Scan"})


@pytest.mark.parametrize("leader_epoch", [None, 0])
@pytest.mark.parametrize("where", ["first offset", "hit", "past the end"])
def test_a_list_from_an_offset_on_costs_the_same_in_any_history(
    any_statistics: dict[int, LongHistory], where: str, leader_epoch: int | None
) -> None:
    costs = [
        list_from(history, OFFSETS[where](history), leader_epoch)
        for history in any_statistics.values()
    ]
    # What is sorted once more is the page alone.
    require_equal_costs(costs, forbidden={"Seq Scan"})


def test_dead_index_entries_do_not_slow_a_look_up(histories: dict[int, LongHistory]) -> None:
    short, long = histories[SHORT], histories[LONG]
    for history in (short, long):
        history.execute(
            "UPDATE segment_epochs SET referenced = false WHERE topic_id = %(topic_id)s"
            f" AND partition = %(partition)s AND start_offset < {hole_of(history)}"
        )
    for offset in (hole_of(long) - 1, hole_of(long) // 2):
        # The first look-up after it, which finds the index full of dead entries.
        gone = look_up(long, lookups.SEGMENT_FOR_OFFSET, offset)
        require_equal_costs([look_up(short, lookups.SEGMENT_FOR_OFFSET, hole_of(short) - 1), gone])


def test_segments_that_a_wide_one_had_displaced_cost_no_more_to_find(
    histories: dict[int, LongHistory],
) -> None:
    # A segment over all of them finished, then its deletion started.
    for history in histories.values():
        history.execute(
            "UPDATE segment_epochs SET referenced = false, overlapped = true"
            " WHERE topic_id = %(topic_id)s AND partition = %(partition)s",
            "UPDATE highest_offsets SET longest_reach = 9999999999"
            " WHERE topic_id = %(topic_id)s AND partition = %(partition)s",
            # Searches go far back now, and may have to once over what has just died.
            "VACUUM segment_epochs",
        )
    for where in ("hit", "hole", "past the end"):
        costs = [
            look_up(history, lookups.SEGMENT_FOR_OFFSET, OFFSETS[where](history))
            for history in histories.values()
        ]
        require_equal_costs(costs)


def test_the_next_transaction_index_costs_the_same_if_each_segment_has_one(
    histories: dict[int, LongHistory],
) -> None:
    for history in histories.values():
        history.execute(
            "UPDATE segments SET txn_idx_empty = false"
            " WHERE topic_id = %(topic_id)s AND partition = %(partition)s",
            "VACUUM segments",
        )
    for where in ("first offset", "hit", "hole", "past the end"):
        costs = [
            look_up(history, lookups.NEXT_WITH_TXN_INDEX, OFFSETS[where](history))
            for history in histories.values()
        ]
        # The index of the long history has one more level; a search descends once for each class.
        require_equal_costs(costs, {"Seq Scan"}, more_buffers=MAX_MORE_BUFFERS + CLASSES)


REMOVED = """
    WITH made AS (
        INSERT INTO topics (topic_id, name)
        SELECT gen_random_uuid(), 'old' FROM generate_series(1, %(count)s) RETURNING topic_id)
    INSERT INTO partitions (topic_id, partition, revision, delete_state)
    SELECT topic_id, 0, 4, 'DELETE_PARTITION_FINISHED' FROM made"""


@pytest.mark.parametrize("kind", ["listing", "listing of a state", "scan", "ages"])
def test_reads_of_all_partitions_do_not_depend_on_how_many_were_removed(
    any_statistics: dict[int, LongHistory], kind: str
) -> None:
    costs = []
    for removed in (10, 20_000):
        engine = create_database_engine(any_statistics[SHORT].database_url)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            connection.exec_driver_sql(REMOVED, {"count": removed})
            statement = (
                psycopg.ClientCursor(driver).mogrify(*ALL_PARTITIONS[kind]).replace("%", "%%")
            )
            costs.append(explain(connection, statement))
            connection.rollback()
        engine.dispose()
    # What is sorted or read in bulk is what the living partitions have.
    require_equal_costs(costs, forbidden=set())


def test_a_read_of_changes_does_not_depend_on_the_audit_trail(
    any_statistics: dict[int, LongHistory],
) -> None:
    costs = [read_of_watches(any_statistics[count]) for count in (SHORT, LONG)]
    require_equal_costs(costs, FORBIDDEN - {"Bitmap Heap Scan"})
