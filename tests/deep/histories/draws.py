"""Draw operations that collide on purpose: few partitions, epochs, offsets, segments and ids."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from threading import Lock
from typing import TypeVar

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.partitions import LOST_BEFORE_COPY, RemotePartitionDeleteState
from services.api.segment_batches import MAX_LEASE_MS, MIN_LEASE_MS
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import BROKER, OTHER_BROKER
from tests.deep.histories.kafka_cache import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    STARTED,
    offsets_by_epoch,
)
from tests.deep.histories.model import Model
from tests.deep.histories.operations import (
    Add,
    Change,
    Config,
    ConfirmDeletions,
    EndHold,
    HighestOffset,
    Import,
    Lead,
    ListPartitions,
    ListSegments,
    LogSize,
    LogStart,
    LookUp,
    Lost,
    Move,
    MoveBatch,
    NextWithTxnIndex,
    Operation,
    PutConfig,
    PutDeletion,
    RaiseLogStart,
    RecordGap,
    RecordObjectDeletions,
    Renew,
    ReplaceData,
    ResetLeaderEpoch,
    SetHold,
    Stop,
    Undelete,
    changes_in,
    revision_read,
)
from tests.deep.histories.partition import MARKED, PARTITION_STARTED, Partition
from tests.deep.histories.space import RENAMED, Space

T = TypeVar("T")

EPOCHS = range(4)
SEGMENT_IDS = range(14)
STEP = 5
LAST_OFFSET = 64
SIZES_BYTES = (-1, 0, 10, 100, 1000)
"""Small: all runs of a database together must not pass the bound of what a day deletes."""
CUSTOM_METADATA = (None, None, None, b"", b"a", b"b")
TOO_LONG = b"x" * 129
CONFIGS: Sequence[tuple[tuple[str, str], ...]] = (
    *[()] * 2,
    *[(("sediment.owner", "team"), ("sediment.delete.grace.ms", "0"))] * 2,
    *[
        (("sediment.retention.owner", owner.value), ("retention.ms", "1000"))
        for owner in RetentionOwner
    ],
    (("remote.storage.enable", "perhaps"),),
)

Draw = Callable[[], Operation]


class Draws:
    """Draw the next operation from random numbers and the model's state.

    Most operations that are drawn without the state would be refused for the same few reasons.
    """

    def __init__(self, random: Random, model: Model, space: Space) -> None:
        self._random = random
        self._model = model
        self._space = space
        self._mutations: list[Operation] = []

    def next(self) -> Operation:
        draws = self._draws()
        [draw] = self._random.choices(list(draws), list(draws.values()))
        operation = draw()
        if operation.is_mutation:
            self._mutations.append(operation)
        return operation

    def _draws(self) -> Mapping[Draw, float]:
        """Return the kinds of operations with their weights."""
        return {
            self._add: 26,
            self._move: 40,
            self._move_batch: 6,
            self._replace_data: 4,
            self._import: 5,
            self._renew: 2,
            self._put_deletion: 3,
            self._lead: 4,
            self._raise_log_start: 4,
            self._record_gap: 4,
            self._record_object_deletions: 1,
            self._undelete: 3,
            self._reset_leader_epoch: 1.5,
            self._put_config: 2,
            self._confirm_deletions: 1,
            self._hold: 3,
            self._stop: 0.3,
            self._again: 6,
            self._read: 10.5,
            self._read_of_topic: 3.5,
        }

    # --- calls --------------------------------------------------------------------------------

    def _add(self) -> Operation:
        tp = self._tp()
        known = self._known(tp)
        if known and self._chance(0.25):
            return self._add_again(tp, self._random.choice(known))
        ids = self._ids(tp)
        new = [number for number in ids if self._segment(tp, number) is None]
        start, end, epochs = self._offsets(tp)
        why = self._why(tp)
        if self._chance(0.4):  # an old leader's copy, sent by the present one
            why = replace(why, broker_leader_epoch=self._highest_leader_epoch(tp))
        return Add(
            tp,
            self._random.choice(new or ids),
            start,
            end,
            epochs,
            size=self._random.choice(SIZES_BYTES),
            custom_metadata=self._custom_metadata(),
            txn_idx_empty=self._chance(0.7),
            broker_id=self._broker(),
            broker_leader_epoch=self._leader_epoch(tp, above=1),
            state=FINISHED if self._chance(0.01) else STARTED,
            lease_ms=self._lease(),
            why=why,
        )

    def _add_again(self, tp: int, number: int) -> Operation:
        """Add a segment again, as it is stored or with other content."""
        again = replace(self._stored_again(tp, number), state=STARTED, lease_ms=self._lease())
        if self._chance(0.4):
            return again
        if self._chance(0.3):
            return replace(again, size=7, why=self._why(tp))
        start, end, epochs = self._offsets(tp)
        return replace(again, start=start, end=end, epochs=epochs, why=self._why(tp))

    def _stored_again(self, tp: int, number: int) -> Add:
        stored = self._segment(tp, number)
        assert stored is not None
        return Add(
            tp,
            number,
            stored.start_offset,
            stored.end_offset,
            tuple((e.leader_epoch, e.start_offset) for e in stored.segment_leader_epochs),
            stored.segment_size_in_bytes,
            stored.custom_metadata,
            stored.txn_idx_empty,
            stored.broker_id,
            stored.broker_leader_epoch,
            stored.state,
        )

    def _move(self) -> Operation:
        tp = self._tp()
        return self._move_of(tp) if self._known(tp) or self._chance(0.1) else self._add()

    def _move_of(self, tp: int) -> Move:
        by_state: dict[RemoteLogSegmentState | None, list[int]] = {}
        for number in self._ids(tp):
            stored = self._segment(tp, number)
            by_state.setdefault(stored.state if stored else None, []).append(number)
        weights = {None: 0.03, STARTED: 1, FINISHED: 1, DELETE_STARTED: 0.5, DELETE_FINISHED: 0.5}
        [state] = self._random.choices(list(by_state), [weights[each] for each in by_state])
        likely = {STARTED: (7, 2, 1), FINISHED: (1, 1, 1), DELETE_STARTED: (1, 1, 1)}
        [target] = self._random.choices(
            [FINISHED, DELETE_STARTED, DELETE_FINISHED], likely.get(state or STARTED, (1, 1, 1))
        )
        return Move(
            tp,
            self._random.choice(by_state[state]),
            STARTED if self._chance(0.005) else target,
            custom_metadata=self._custom_metadata(),
            broker_id=self._broker(),
            event_timestamp_ms=self._random.randint(2, 4),
            why=self._why(tp),
        )

    def _move_batch(self) -> Operation:
        tp = self._tp()
        moves = [self._move_of(tp) for _ in range(self._random.randint(1, 5))]
        if self._chance(0.2):
            moves.append(self._move_of(self._any_tp()))
        if self._chance(0.3):
            # As sweeps make them: all decided on the same revision.
            why = replace(moves[0].why, request_id=None, expected_revision=self._revision(tp))
            moves = [replace(move, why=why) for move in moves]
        if not self._chance(0.05):  # else a segment may come twice
            moves = list({(move.tp % RENAMED, move.id): move for move in moves}.values())
        return MoveBatch(tuple(moves) if not self._chance(0.01) else ())

    def _replace_data(self) -> Operation:
        """Replace the data of a segment, mostly of a finished one with custom metadata."""
        tp = self._tp()
        stored = {number: self._segment(tp, number) for number in self._ids(tp)}
        custom = {
            number: segment.custom_metadata
            for number, segment in stored.items()
            if segment is not None and segment.state is FINISHED and segment.custom_metadata
        }
        number = self._random.choice(list(custom) if custom and self._chance(0.9) else list(stored))
        expected = custom.get(number) if self._chance(0.8) else None
        new = TOO_LONG if self._chance(0.02) else self._random.choice([b"", b"a", b"b", b"c"])
        return ReplaceData(
            tp,
            number,
            self._random.choice([b"", b"a", b"b"]) if expected is None else expected,
            new,
            why=self._why(tp),
        )

    def _import(self) -> Operation:
        """Import one or two messages, of the same partition more often than not."""
        tp = self._tp()
        messages = tuple(self._imported(tp) for _ in range(self._random.choice([1, 1, 2])))
        why = MutationContext(reason="r" if self._chance(0.3) else "")
        if self._chance(0.02):
            why = replace(why, request_id="q0")
        return Import(tp, messages, why=why)

    def _imported(self, tp: int) -> tuple[Add, ...]:
        if self._chance(0.4):
            return self._side_by_side(tp)
        numbers = self._random.choices(SEGMENT_IDS, k=self._random.choice([0, *[1, 2, 3, 4] * 9]))
        return tuple(self._import_of(tp, number) for number in numbers)

    def _side_by_side(self, tp: int) -> tuple[Add, ...]:
        """Return new segments that continue where the epoch ends, mostly."""
        epoch = self._random.choice(EPOCHS)
        highest = self._partition(tp).highest_offset(epoch)
        start = 0 if highest is None else highest + self._random.choice([1, 1, 1, 1, 3, -2])
        adds = []
        for number in SEGMENT_IDS:
            if self._segment(tp, number) is None and self._chance(0.5):
                end = start + self._random.choice([0, 2, 4, 4])
                state = self._random.choice([*[FINISHED] * 9, STARTED])
                idle = self._chance(0.8)
                epochs = ((epoch, start),)
                adds.append(Add(tp, number, start, end, epochs, txn_idx_empty=idle, state=state))
                start = end + self._random.choice([1] * 9 + [2])
        return tuple(adds)

    def _import_of(self, tp: int, number: int) -> Add:
        """Return the segment as it is stored, or another one with its number."""
        tp = self._any_tp() if self._chance(0.02) else tp
        if self._segment(tp, number) is not None and self._chance(0.9):
            again = self._stored_again(tp, number)
            if self._chance(0.8):
                return again
            return replace(again, state=STARTED, custom_metadata=self._custom_metadata())
        below = self._chance(0.3) and self._partition(tp).log_start_offset
        start, end, epochs = self._offsets_below(below) if below else self._offsets(tp)
        return Add(
            tp,
            number,
            start,
            end,
            epochs,
            custom_metadata=self._custom_metadata(),
            txn_idx_empty=self._chance(0.7),
            broker_leader_epoch=self._leader_epoch(tp, above=1),
            state=self._random.choice([*[FINISHED] * 5, *RemoteLogSegmentState]),
        )

    def _renew(self) -> Operation:
        tp = self._tp() if self._chance(0.9) else RENAMED
        ids = self._random.choices(self._known(tp) or SEGMENT_IDS, k=self._random.randint(1, 4))
        if not self._chance(0.1):  # else a segment may come twice
            ids = list(dict.fromkeys(ids))
        if self._chance(0.2):
            ids = [*ids, *SEGMENT_IDS[len(ids) :]]
        lease_ms = MIN_LEASE_MS - 1 if self._chance(0.02) else MAX_LEASE_MS
        return Renew(tp, tuple(ids), lease_ms, -1 if self._chance(0.02) else self._broker())

    def _put_deletion(self) -> Operation:
        tp = self._dying_tp()
        present = self._partition(tp).delete_state
        states = list(RemotePartitionDeleteState)
        following = states[(states.index(present) + 1) % 3] if present else states[0]
        state = following if self._chance(0.7) else self._random.choice(states)
        return PutDeletion(tp, state, why=self._why(tp))

    def _lead(self) -> Operation:
        # Never a partition twice: the contract suite has that.
        tps = self._random.sample(range(4) if self._chance(0.1) else range(3), 2)
        reported = tuple((tp, self._leader_epoch(tp, above=3)) for tp in tps)
        at = self._random.randint(0, 2)
        return Lead(
            reported[:at], reported[at:], broker_id=-2 if self._chance(0.01) else self._broker()
        )

    def _raise_log_start(self) -> Operation:
        tp = self._tp() if self._chance(0.8) else self._dying_tp()
        offset = self._random.choice([-1, *[self._offset(tp) for _ in range(9)]])
        return RaiseLogStart(tp, offset, why=self._why(tp))

    def _record_gap(self) -> Operation:
        """Record a gap, mostly beside the segments: finished ones have no gap."""
        tp = self._tp() if self._chance(0.8) else self._dying_tp()
        start = self._offset(tp)
        gaps = self._partition(tp).gaps
        if gaps and self._chance(0.6):  # again, or against it
            gap = self._random.choice(gaps)
            edges = [max(0, gap.start_offset - 1), gap.start_offset, gap.end_offset]
            start = self._random.choice([*edges, gap.end_offset + 1])
        elif self._chance(0.6):
            ends = [each.end_offset for each in self._partition(tp).live]
            start = max(ends, default=0) + self._random.randint(1, 12)
        end = start + self._random.choice([0, 0, 1, 2, 3, 5])
        kind = "HOLE" if self._chance(0.02) else LOST_BEFORE_COPY
        return RecordGap(tp, start, end, kind, self._broker(), why=self._why(tp))

    def _record_object_deletions(self) -> Operation:
        """Record deletions of segments that are known or not, of an object twice now and then."""
        tp = self._any_tp()
        count = self._random.choice([0, 1, 1, 2, 3])
        objects = [
            (self._random.choice(SEGMENT_IDS), self._random.choice(["1:a.log", "1:b", "2:b"]))
            for _ in range(count)
        ]
        return RecordObjectDeletions(tp, tuple(objects), why=self._why(tp))

    def _undelete(self) -> Operation:
        """Undelete or mark a partition, mostly one that was marked before."""
        marked = [tp for tp in range(RENAMED) if MARKED in self._partition(tp).moved_at]
        tp = self._random.choice(marked) if marked and self._chance(0.8) else self._any_tp()
        if self._chance(0.5):
            return PutDeletion(tp, MARKED, why=self._why(tp))
        return Undelete(tp, why=self._why(tp))

    def _reset_leader_epoch(self) -> Operation:
        tp = self._dying_tp()
        epoch = -1 if self._chance(0.05) else self._leader_epoch(tp, above=2)
        return ResetLeaderEpoch(tp, epoch, why=self._why(tp))

    def _confirm_deletions(self) -> Operation:
        tp = self._any_tp()
        revision = self._partition(tp).topic.config_revision
        return ConfirmDeletions(tp, self._random.choice([revision, revision, revision + 1, -1]))

    def _put_config(self) -> Operation:
        tp = self._dying_tp()
        revision = self._partition(tp).topic.config_revision
        expected = self._random.choice([None, None, None, revision, revision + 1])
        now = self._chance(0.3)
        return PutConfig(tp, self._random.choice(CONFIGS), expected, now)

    def _hold(self) -> Operation:
        tp, name, of_topic = self._any_tp(), self._random.choice("ab"), self._chance(0.3)
        if self._chance(0.6):  # else too much would be refused
            return EndHold(tp, name, of_topic)
        start = 0 if self._chance(0.3) else self._offset(tp)
        end = self._random.choice([None, start, start + 7])
        return SetHold(tp, name, start, end, of_topic)

    def _stop(self) -> Operation:
        return Stop(self._any_tp())

    def _again(self) -> Operation:
        """Repeat an earlier operation, perhaps with other expectations."""
        if not self._mutations:
            return self._read()
        earlier = self._random.choice(self._mutations[-12:])
        if isinstance(earlier, Change) and self._chance(0.3):
            revision = self._revision(earlier.tp)
            return replace(earlier, why=replace(earlier.why, expected_revision=revision))
        return earlier

    def _read(self) -> Operation:
        tp, epoch = self._tp(), self._random.randint(0, EPOCHS.stop)
        if self._chance(0.02):
            epoch = -1
        return self._random.choice(
            [
                LookUp(tp, epoch, self._offset(tp)),
                NextWithTxnIndex(tp, epoch, self._offset(tp)),
                HighestOffset(tp, epoch),
                LogSize(tp, epoch),
                self._list(tp),
                LogStart(tp),
            ]
        )

    def _read_of_topic(self) -> Operation:
        states = tuple(self._some(RemotePartitionDeleteState))
        return self._random.choice(
            [ListPartitions(states, self._random.randint(0, 2)), Config(self._any_tp())]
        )

    def _list(self, tp: int) -> ListSegments:
        revision = self._revision(tp)
        return ListSegments(
            tp,
            self._random.choice([None, *range(EPOCHS.stop + 1)]),
            tuple(self._some(RemoteLogSegmentState)),
            self._offset(tp) if self._chance(0.4) else None,
            revision - self._random.randint(0, 1) if self._chance(0.3) else None,
            page_size=self._random.choice([-1, 0, 0, 1, 2, 3]),
        )

    # --- arguments ------------------------------------------------------------------------------

    def _offsets(self, tp: int) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """Return start, end and epochs: anywhere, or against a finished segment in every way."""
        start = self._random.randrange(0, LAST_OFFSET, STEP)
        end = min(start + self._random.choice([1, 5, 5, 10, 15, 20, 40]) - 1, LAST_OFFSET)
        epoch = self._random.choice(EPOCHS)
        finished = [each for each in self._partition(tp).live if each.state is FINISHED]
        if finished and self._chance(0.7):
            other = offsets_by_epoch(self._random.choice(finished))
            epoch, (first, last) = self._random.choice(list(other.items()))
            start, end = self._against(first, last)
        return self._with_epochs(epoch, start, max(start, end))

    def _offsets_below(self, log_start: int) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        end = self._random.randrange(log_start)
        return self._with_epochs(self._random.choice(EPOCHS), max(0, end - 4), end)

    def _against(self, first: int, last: int) -> tuple[int, int]:
        before, after = (
            max(0, first - self._random.randint(1, 6)),
            last + self._random.randint(1, 6),
        )
        inside = self._random.randint(first, max(first, last))
        return self._random.choice(
            [
                (first, last),
                (first, inside),
                (first, after),
                (before, last),
                (before, after),
                (before, inside),
                (inside, last),
                (inside, after),
                (inside, inside),
                (last + 1, after),
                (before, max(0, first - 1)),
                (0, LAST_OFFSET),
            ]
        )

    def _with_epochs(
        self, epoch: int, start: int, end: int
    ) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        if self._chance(0.65) or epoch + 1 not in EPOCHS:
            # As lenient as Kafka: an epoch may begin before its segment, or after (ADR 0002).
            first = max(0, start - 3) if self._chance(0.03) else start
            return start, end, ((epoch, min(first, end)),)
        if self._chance(0.2):
            return start, end, ((epoch, start), (epoch + 1, start))  # the first has no offsets
        later = end + self._random.randint(1, 12)
        if self._chance(0.3) and epoch + 2 in EPOCHS:
            return start, later + 3, ((epoch, start), (epoch + 1, end + 1), (epoch + 2, later + 1))
        return start, later, ((epoch, start), (epoch + 1, end + 1))

    def _why(self, tp: int) -> MutationContext:
        context = MutationContext(reason="r" if self._chance(0.1) else "")
        if self._chance(0.2):
            context = replace(context, request_id=f"q{self._random.randint(0, 3)}")
        if self._chance(0.3):
            context = replace(context, broker_leader_epoch=self._leader_epoch(tp))
        if self._chance(0.3):
            context = replace(context, retention_owner=self._random.choice(list(RetentionOwner)))
        if self._chance(0.12):
            revision = max(0, self._revision(tp) - self._random.choice([0, 0, 0, 1]))
            context = replace(context, expected_revision=revision)
        if self._chance(0.06):
            revision = self._partition(tp).topic.config_revision + self._random.choice([0, 0, 1])
            context = replace(context, expected_config_revision=revision)
        return replace(context, plan_id=self._plan_id())

    def _plan_id(self) -> str | None:
        return self._random.choice(["p0", "p1"]) if self._chance(0.2) else None

    def _leader_epoch(self, tp: int, *, above: int = 0) -> int | None:
        highest = self._highest_leader_epoch(tp)
        some = self._random.randint(0, highest + above)
        return self._random.choice([None, highest, highest, max(0, highest - 1), some])

    def _highest_leader_epoch(self, tp: int) -> int:
        return self._partition(tp).highest_broker_leader_epoch or 0

    def _custom_metadata(self) -> bytes | None:
        return TOO_LONG if self._chance(0.005) else self._random.choice(CUSTOM_METADATA)

    def _lease(self) -> int | None:
        """Return a lease that outlasts the sequence, as the model knows no other."""
        return self._random.choice([*[None] * 12, *[MAX_LEASE_MS] * 7, MAX_LEASE_MS + 1])

    def _broker(self) -> int:
        return BROKER if self._chance(0.8) else OTHER_BROKER

    def _offset(self, tp: int) -> int:
        """Return an offset, anywhere or at the edge of a segment."""
        known = self._partition(tp).live
        if not known or self._chance(0.4):
            return self._random.randint(0, LAST_OFFSET + 3)
        segment = self._random.choice(known)
        return self._random.choice([segment.start_offset, segment.end_offset]) + self._chance(0.3)

    def _tp(self) -> int:
        """Return mostly the one partition, so that much happens to it."""
        return 0 if self._chance(0.8) else self._dying_tp()

    def _any_tp(self) -> int:
        return RENAMED if self._chance(0.04) else self._random.randrange(RENAMED)

    def _dying_tp(self) -> int:
        """Return mostly the last partition, which has few segments, so that all of them may go."""
        return RENAMED - 1 if self._chance(0.7) else self._any_tp()

    def _some(self, of: type[T]) -> list[T]:
        each = list(of)  # type: ignore[call-overload]
        return self._random.sample(each, self._random.choice([0, 0, 1, 2]))

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    # --- what the model knows -------------------------------------------------------------------

    def _partition(self, tp: int) -> Partition:
        return self._model.partition(self._space.partitions[tp])

    def _revision(self, tp: int) -> int:
        return self._partition(tp).revision

    def _segment(self, tp: int, number: int) -> RemoteLogSegmentMetadata | None:
        return self._partition(tp).segments.get(self._space.segment_id(tp, number).id)

    def _known(self, tp: int) -> list[int]:
        return [number for number in self._ids(tp) if self._segment(tp, number)]

    def _ids(self, tp: int) -> Sequence[int]:
        """Return the numbers of the segments to draw from."""
        return SEGMENT_IDS


class SharedModel:
    """An approximate model that concurrent clients share: of what was answered, in any order.

    Attributes:
        dying: the partitions that are deleted after a while, with all their segments.
    """

    def __init__(self, space: Space, dying: Sequence[int] = ()) -> None:
        self.model = Model()
        self.space = space
        self.dying = dying
        self._uses = Counter[int]()
        self._lock = Lock()

    def use(self, tp: int) -> int:
        """Count one more operation of a partition; return how many were before it."""
        with self._lock:
            self._uses[tp] += 1
            return self._uses[tp] - 1

    def apply(self, operation: Operation, reply: object) -> None:
        """Apply an operation of one partition that was neither refused nor lost."""
        if isinstance(reply, type | Lost):
            return
        tp = self.space.partitions[operation.tps[0]]
        revisions = [outcome.revision for outcome in changes_in(reply)]
        revisions += [each for each in [revision_read(reply)] if each is not None]
        with self._lock:
            before = self.model.partition(tp).revision
            if operation.is_mutation:
                operation.reply(self.model, self.space)
            if revisions:
                after = replace(self.model.partition(tp), revision=max(before, *revisions))
                self.model.put_partition(tp, after)


class ConcurrentDraws(Draws):
    """Draw the operations of one of several clients, each of one partition.

    Segments come from a window of numbers that moves as a partition is used, so that clients change
    the same few segments, and there are always new ones.
    """

    WINDOW = 4
    """Segments before the newest one, and from it on, that are in play at once."""
    USES_PER_SEGMENT = 10
    """Operations of a partition after which its window moves on by one segment."""
    USES_OF_A_LIFE = 150
    """Operations of a dying partition before its deletion begins."""

    def __init__(self, random: Random, shared: SharedModel) -> None:
        super().__init__(random, shared.model, shared.space)
        self._shared = shared
        self._drawn = self._uses = 0

    def next(self) -> Operation:
        self._drawn = self._random.randrange(len(self._space.partitions))
        self._uses = self._shared.use(self._drawn)
        return super().next()

    def _draws(self) -> Mapping[Draw, float]:
        is_dying = self._drawn in self._shared.dying
        return {
            self._add: 16,
            self._move: 30,
            self._move_batch: 8,
            self._replace_data: 4,
            self._put_deletion: 12 if is_dying else 0,
            self._lead: 3,
            self._raise_log_start: 2,
            self._undelete: 3 if is_dying else 1,
            self._reset_leader_epoch: 1,
            self._read: 41,
        }

    def _put_deletion(self) -> Operation:
        """Mark a partition at the end of its life only; what follows the mark is refused before."""
        drawn = super()._put_deletion()
        assert isinstance(drawn, PutDeletion)
        is_too_early = drawn.state is MARKED and not self._is_over
        return replace(drawn, state=PARTITION_STARTED) if is_too_early else drawn

    def _move_batch(self) -> Operation:
        """Never an empty one, which is of no partition."""
        batch = super()._move_batch()
        return batch if batch.tps else self._move_batch()

    def _lead(self) -> Operation:
        return Lead(((self._drawn, self._leader_epoch(self._drawn, above=1)),), (), self._broker())

    def _undelete(self) -> Operation:
        return Undelete(self._drawn, why=self._why(self._drawn))

    def _list(self, tp: int) -> ListSegments:
        """List on one page: several are not one read."""
        return replace(super()._list(tp), page_size=0)

    def _why(self, tp: int) -> MutationContext:
        """Give each change a reason of its own, so that the audit trail shows whose it was."""
        if self._chance(0.05):
            return NO_CONTEXT
        intent = f"{self._random.getrandbits(48):012x}"
        return replace(super()._why(tp), reason=intent, request_id=self._request_id(intent))

    def _plan_id(self) -> None:
        """Return none: the search would take a repeat of a plan's deletion for the change."""

    def _request_id(self, intent: str) -> str | None:
        """Return mostly an id of its own, at times one that another change may have had."""
        chance = self._random.random()
        if chance < 0.25:
            return None
        return f"shared-{self._uses // 40}" if chance < 0.30 else intent

    def _tp(self) -> int:
        return self._drawn

    def _any_tp(self) -> int:
        return self._drawn

    def _dying_tp(self) -> int:
        return self._drawn

    def _ids(self, tp: int) -> Sequence[int]:
        newest = self._uses // self.USES_PER_SEGMENT
        return range(0 if self._is_over else max(0, newest - self.WINDOW), newest + self.WINDOW)

    @property
    def _is_over(self) -> bool:
        return self._drawn in self._shared.dying and self._uses > self.USES_OF_A_LIFE
