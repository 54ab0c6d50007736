"""Test that RLMM's look-ups, which read few rows, match the rules over all rows."""

import random
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    SegmentUpdate,
    all_segments,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.reads import lookups
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    id_of,
    move,
    segment,
    update_to,
)
from tests.harness import look_up_oracle

pytestmark = pytest.mark.deep

TP = TopicIdPartition(uuid4(), "orders", 0)
OFFSETS = 64
STEPS = 30


def require_same_answers(engine: Engine, history: object) -> None:
    for epoch in (0, 1):
        for statement, oracle in (
            (lookups.SEGMENT_FOR_OFFSET, look_up_oracle.SEGMENT_FOR_OFFSET),
            (lookups.NEXT_WITH_TXN_INDEX, look_up_oracle.NEXT_WITH_TXN_INDEX),
        ):
            found = look_up_oracle.answers(engine, statement, TP, epoch, OFFSETS)
            expected = look_up_oracle.answers(engine, oracle, TP, epoch, OFFSETS)
            assert found == expected, history


class RandomHistory:
    """Segments adjacent, overlapping and out of order, with random deletions."""

    def __init__(self, rlmm: RemoteLogMetadataManager, seed: int) -> None:
        self._rlmm = rlmm
        self._random = random.Random(seed)
        self._copying: list[RemoteLogSegmentMetadata] = []
        self._live: list[RemoteLogSegmentMetadata] = []
        self.end = 0
        self.steps: list[str] = []

    def step(self) -> None:
        chosen = self._random.choices(
            [self._append, self._overlap, self._finish, self._delete, self._delete_batch],
            [5, 2, 5, 2, 1],
        )[0]
        chosen()

    def _append(self) -> None:
        """Append a copy that starts at the end of the last one, or after a gap; it finishes some
        time.
        """
        start = self.end + self._random.choice([0] * 6 + [2])
        end = start + self._random.choice([0, 1, 3, 9])
        if end < OFFSETS - 2:
            self.end = end + 1
            self._add(start, end)

    def _overlap(self) -> None:
        start = self._random.randrange(max(self.end, 1))
        self._add(start, min(start + self._random.randrange(25), OFFSETS - 3))

    def _add(self, start: int, end: int) -> None:
        epochs = {self._random.choice([0, 0, 0, 1]): start}
        if 0 in epochs and self._random.random() < 0.15:
            epochs[1] = self._random.randint(start, end)
        fields = {
            "txn_idx_empty": self._random.random() < 0.8,
            "broker_leader_epoch": self._random.choice([None, 3, 4]),
        }
        copy = segment(TP, start, end, epochs, **fields)
        self._rlmm.add_remote_log_segment_metadata(copy, MutationContext(broker_leader_epoch=4))
        self.steps.append(f"add {start}-{end} {epochs} {fields}")
        self._copying.append(copy)

    def _finish(self) -> None:
        # The oldest more often than not: copies finish in order but for a few.
        while self._copying:
            index = self._random.choice([0, 0, 0, len(self._copying) - 1])
            copy = self._copying.pop(index)
            move(self._rlmm, copy, FINISHED)
            self.steps.append(f"finish {copy.start_offset}-{copy.end_offset}")
            self._live.append(copy)
            if self._random.random() < 0.6:
                return

    def _delete(self) -> None:
        if self._live:
            gone = self._live.pop(self._random.choice([0, self._random.randrange(len(self._live))]))
            move(self._rlmm, gone, DELETE_STARTED)
            self.steps.append(f"delete {gone.start_offset}-{gone.end_offset}")
            if self._random.random() < 0.5:
                move(self._rlmm, gone, DELETE_FINISHED)

    def _delete_batch(self) -> None:
        gone, self._live = self._live[:3], self._live[3:]
        if gone:
            updates = [SegmentUpdate(update_to(each, DELETE_STARTED)) for each in gone]
            self._rlmm.update_remote_log_segment_metadata_batch(updates)
            self.steps.append(f"delete {[(e.start_offset, e.end_offset) for e in gone]}")


@pytest.mark.parametrize("seed", range(6))
def test_any_history_answers_as_the_rules_say(
    rlmm: RemoteLogMetadataManager, engine: Engine, seed: int
) -> None:
    history = RandomHistory(rlmm, seed)
    for _ in range(STEPS):
        history.step()
        require_same_answers(engine, history.steps)
    assert history.end > 0


@pytest.mark.parametrize("seed", range(100, 103))
def test_a_search_for_transaction_indexes_misses_none_that_kafkas_finds(
    rlmm: RemoteLogMetadataManager, engine: Engine, seed: int
) -> None:
    """A reader that collects aborted transactions from an offset reads at least those of Kafka's
    search.
    """
    history = RandomHistory(rlmm, seed)
    for _ in range(STEPS):
        history.step()
    ranges = {
        id_of(each): range(each.start_offset, each.end_offset + 1)
        for each in all_segments(rlmm, TP)
    }

    def collected(answers: Sequence[UUID | None], offset: int) -> set[int]:
        found: set[int] = set()
        while offset < OFFSETS and (answer := answers[offset]) is not None:
            found.update(ranges[answer])
            offset = ranges[answer].stop
        return found

    more = 0
    for epoch in (0, 1):
        statements = (lookups.NEXT_WITH_TXN_INDEX, look_up_oracle.KAFKAS_NEXT_WITH_TXN_INDEX)
        ours, kafkas = (
            look_up_oracle.answers(engine, statement, TP, epoch, OFFSETS)
            for statement in statements
        )
        for offset in range(OFFSETS):
            mine, theirs = collected(ours, offset), collected(kafkas, offset)
            assert theirs <= mine, (epoch, offset, history.steps)
            more += len(mine - theirs)
    assert more > 0
