"""Offsets that the tier will never have."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.validation import require, require_int64

LOST_BEFORE_COPY = "LOST_BEFORE_COPY"
"""The broker deleted them before they were copied."""
GAP_KINDS = (LOST_BEFORE_COPY,)
MAX_GAPS = 1_000
"""Gaps that are kept of a partition: those of the greatest offsets."""


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """A range of offsets, both ends inclusive.

    Attributes:
        kind: why; one of GAP_KINDS where it is to be recorded, perhaps another one of a later
            release where it was read.
    """

    start_offset: int
    end_offset: int
    kind: str = LOST_BEFORE_COPY

    def __post_init__(self) -> None:
        require_int64(self.start_offset, "start_offset")
        require_int64(self.end_offset, "end_offset")
        in_order = self.start_offset <= self.end_offset
        require(in_order, "end_offset", f"must not be below start_offset {self.start_offset}")


def is_recorded(gaps: Sequence[OffsetGap], start_offset: int, end_offset: int) -> bool:
    """Whether a range, both ends inclusive, lies within one of the recorded gaps.

    Args:
        gaps: all that are kept of a partition, ascending. Where they are MAX_GAPS, what lies below
            the first of them counts as recorded: it may have been, and is not kept any more.
    """
    if len(gaps) >= MAX_GAPS and end_offset + 1 < gaps[0].start_offset:
        return True
    return any(gap.start_offset <= start_offset and end_offset <= gap.end_offset for gap in gaps)
