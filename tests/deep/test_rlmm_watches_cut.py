"""Test that watches miss nothing while two RLMMs change partitions and the watches are cut."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.watches import ChangedSegment, WatchedPartition
from services.common.retry import RETRIABLE_ERRORS
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, add, segment
from tests.harness.processes import running_rlmm

PARTITIONS = 20
SEGMENTS = 18
"""Of each partition, each with three changes: 1,080 together."""
WRITERS = 8
WATCHERS = 4
MOST_UPDATES = 8
"""Of a watch, before it is cut."""

Rlmms = list[RemoteLogMetadataManagerClient]
Reported = Counter[tuple[int, ChangedSegment]]

INVALIDATIONS = """
    SELECT partition, segment_id, to_state FROM events
    WHERE kind = 'SEGMENT' AND to_state IN ('COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED')"""
END_READERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE '%pg_current_snapshot%'
        AND pid <> pg_backend_pid()"""


@pytest.fixture
def rlmms(database_url: str, tmp_path: Path) -> Iterator[Rlmms]:
    with (
        running_rlmm(database_url, tmp_path / "1") as first,
        running_rlmm(database_url, tmp_path / "2") as second,
    ):
        yield [first.client, second.client]


def write(rlmms: Rlmms, tps: list[TopicIdPartition], chance: Random) -> None:
    """Copy and expire the partitions' segments, each change at one of the two RLMMs."""
    for number in range(SEGMENTS):
        for tp in tps:
            states = (FINISHED, DELETE_STARTED)
            add(chance.choice(rlmms), segment(tp, number * 10, number * 10 + 9), *states)


class Watcher:
    """Watches until it has seen the last revision of each partition."""

    def __init__(self, rlmms: Rlmms, tps: list[TopicIdPartition], seed: int) -> None:
        self._rlmms = rlmms
        self._tps = tps
        self._chance = Random(seed)
        self._revisions = [0] * len(tps)
        self.reported: Reported = Counter()
        self.cuts = self.failures = 0

    def run(self) -> None:
        while min(self._revisions) < 3 * SEGMENTS:
            try:
                self._watch_once()
            except RETRIABLE_ERRORS:
                self.failures += 1

    def _watch_once(self) -> None:
        watched = list(map(WatchedPartition, self._tps, self._revisions))
        left = self._chance.randint(1, MOST_UPDATES)
        with closing(self._chance.choice(self._rlmms).watch_partitions(watched)) as updates:
            for update in updates:
                for each in update.partitions:
                    assert not each.everything
                    assert each.revision >= self._revisions[each.place]
                    self._revisions[each.place] = each.revision
                    self.reported.update((each.place, changed) for changed in each.segments)
                left -= 1
                if not left:
                    self.cuts += 1
                    return


def test_nothing_is_missed_however_watches_are_cut(rlmms: Rlmms, engine: Engine) -> None:
    topic_id = uuid4()
    tps = [TopicIdPartition(topic_id, "orders", number) for number in range(PARTITIONS)]
    watchers = [Watcher(rlmms, tps, seed) for seed in range(WATCHERS)]
    with ThreadPoolExecutor(WRITERS + WATCHERS) as pool, engine.connect() as connection:
        watching = [pool.submit(watcher.run) for watcher in watchers]
        writing = [
            pool.submit(write, rlmms, tps[number::WRITERS], Random(number))
            for number in range(WRITERS)
        ]
        for done in writing[: WRITERS // 2]:
            done.result()
            # Of both RLMMs: their watches end with an error.
            connection.execute(text(END_READERS))
            connection.commit()
        for done in [*writing, *watching]:
            done.result()
        states = {state.value: state for state in (FINISHED, DELETE_STARTED)}
        invalidations: Reported = Counter(
            (row.partition, ChangedSegment(UUID(str(row.segment_id)), states[row.to_state]))
            for row in connection.execute(text(INVALIDATIONS))
        )
    assert len(invalidations) == 2 * PARTITIONS * SEGMENTS
    # Not more either: a watch that resumes repeats nothing that the client has.
    assert [watcher.reported == invalidations for watcher in watchers] == [True] * WATCHERS
    assert min(watcher.cuts for watcher in watchers) > 0
    assert sum(watcher.failures for watcher in watchers) > 0
