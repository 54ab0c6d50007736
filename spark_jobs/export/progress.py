"""Decide which offsets of a partition an export commits next. Pure rules."""

from collections.abc import Iterator

from services.api.errors import InvalidRangeError
from services.api.ids import TopicIdPartition, uuid_to_text


def application_id(tp: TopicIdPartition) -> str:
    """Return the name under which the table stores the next offset of a partition."""
    return f"sediment-export:{uuid_to_text(tp.topic_id)}:{tp.partition}"


def begin_of(position: int | None, first: int, *, skip_lost: bool) -> int:
    """Return the first offset to export.

    Args:
        position: the next offset by the table; None if it has nothing of the partition.
        first: the first offset in the tier, or the position if that is later.

    Raises:
        InvalidRangeError: offsets from the position on are gone, and `skip_lost` is false.
    """
    if position is None or position >= first or skip_lost:
        return first
    raise InvalidRangeError(
        f"offsets {position} to {first - 1} were deleted from the tier before they were exported; "
        "--skip-lost goes on without them"
    )


def ranges(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Split offsets into ranges of at most `most`; each is one commit. Ends are exclusive."""
    for at in range(begin, end, most):
        yield at, min(at + most, end)
