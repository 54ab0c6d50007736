"""What a run has reached: (a segment's stored state) x (event) x (overlap with finished ones)."""

from collections.abc import Iterator
from enum import Enum
from itertools import product
from typing import NamedTuple

from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.deep.histories.kafka_cache import FINISHED, STARTED, KafkaCache, offsets_by_epoch
from tests.deep.histories.model import Model
from tests.deep.histories.operations import Add, Move, MoveBatch, Operation
from tests.deep.histories.space import Space


class Shape(Enum):
    """How the offsets of the event's segment in one leader epoch lie to those of the others that
    are finished there."""

    FIRST = "nothing has finished in the epoch yet"
    NONE_LEFT = "all that finished in the epoch is gone or going"
    APART = "shares and touches nothing"
    ADJACENT_BEFORE = "ends where a finished one begins"
    ADJACENT_AFTER = "begins where a finished one ends"
    SAME = "same start, same end"
    SAME_START_SHORTER = "same start, ends before"
    SAME_START_LONGER = "same start, ends after"
    CONTAINS = "starts before, ends there or after"
    CONTAINED = "starts after, ends there or before"
    OVERLAPS_LEFT = "starts before, ends inside"
    OVERLAPS_RIGHT = "starts inside, ends after"
    OVERLAPS_SEVERAL = "shares offsets with two or more"
    OVERLAPS_IN_TWO_EPOCHS = "has two epochs, and shares offsets in both"
    WITHOUT_OFFSETS = "an epoch that ends before it starts"
    UNKNOWN = "an update of an unknown segment, whose offsets are not known"


class Cell(NamedTuple):
    """`stored` None: the segment is not known."""

    stored: RemoteLogSegmentState | None
    event: RemoteLogSegmentState
    shape: Shape


def cannot_exist(cell: Cell) -> str | None:
    """Why no call can reach the cell; None: one can."""
    is_update_of_nothing = cell.stored is None and cell.event is not STARTED
    if is_update_of_nothing != (cell.shape is Shape.UNKNOWN):
        return "an update of an unknown segment has no offsets, and every other event has some"
    if cell.stored is FINISHED and cell.event is not STARTED and cell.shape is Shape.FIRST:
        return "the segment itself has finished in the epoch"
    return None


ALL_CELLS = [
    Cell(*each) for each in product([None, *RemoteLogSegmentState], RemoteLogSegmentState, Shape)
]
POSSIBLE_CELLS = frozenset(cell for cell in ALL_CELLS if cannot_exist(cell) is None)


def cells_of(operation: Operation, model: Model, space: Space) -> Iterator[Cell]:
    """Yield the cells that the operation is about to reach, before the model; none for what is
    malformed in itself, such as an add in another state than COPY_SEGMENT_STARTED."""
    if isinstance(operation, MoveBatch):
        for move in operation.moves:
            yield from cells_of(move, model, space)
    elif isinstance(operation, Add | Move) and isinstance(operation, Add) is (
        operation.state is STARTED
    ):
        partition = model.partition(space.partitions[operation.tp])
        stored = partition.segments.get(space.segment_id(operation.tp, operation.id).id)
        state = stored.state if stored else None
        reported = operation.metadata(space) if isinstance(operation, Add) else stored
        for shape in _shapes(reported, partition):
            yield Cell(state, operation.state, shape)


def _shapes(segment: RemoteLogSegmentMetadata | None, cache: KafkaCache) -> set[Shape]:
    if segment is None:
        return {Shape.UNKNOWN}
    found: set[Shape] = set()
    overlapped_epochs = 0
    for epoch, own in offsets_by_epoch(segment).items():
        others = list(_finished_ranges(segment, epoch, cache))
        overlaps = sum(_overlap(own, other) for other in others)
        overlapped_epochs += overlaps > 0
        if own[1] < own[0]:
            found.add(Shape.WITHOUT_OFFSETS)
        elif not others:
            found.add(Shape.FIRST if cache.highest_offset(epoch) is None else Shape.NONE_LEFT)
        else:
            pairs = {_shape_of_pair(own, other) for other in others}
            found |= pairs - {Shape.APART} or {Shape.APART}
        if overlaps > 1:
            found.add(Shape.OVERLAPS_SEVERAL)
    if overlapped_epochs > 1:
        found.add(Shape.OVERLAPS_IN_TWO_EPOCHS)
    return found


def _finished_ranges(
    segment: RemoteLogSegmentMetadata, epoch: int, cache: KafkaCache
) -> Iterator[tuple[int, int]]:
    for other in cache.live:
        offsets = offsets_by_epoch(other).get(epoch)
        is_other = other.remote_log_segment_id != segment.remote_log_segment_id
        if is_other and other.state is FINISHED and offsets is not None:
            yield offsets


def _overlap(own: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(own[0], other[0]) <= min(own[1], other[1])


def _shape_of_pair(own: tuple[int, int], other: tuple[int, int]) -> Shape:
    (start, end), (other_start, other_end) = own, other
    if end + 1 == other_start:
        return Shape.ADJACENT_BEFORE
    if other_end + 1 == start:
        return Shape.ADJACENT_AFTER
    if not _overlap(own, other):
        return Shape.APART
    if start == other_start:
        if end == other_end:
            return Shape.SAME
        return Shape.SAME_START_SHORTER if end < other_end else Shape.SAME_START_LONGER
    if start < other_start:
        return Shape.CONTAINS if end >= other_end else Shape.OVERLAPS_LEFT
    return Shape.CONTAINED if end <= other_end else Shape.OVERLAPS_RIGHT
