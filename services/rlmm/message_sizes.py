"""How much of an answer fits into one message."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from services.rlmm.rows import AnyRow

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""An answer is one message, and none may be larger than 4 MiB."""
MAX_NAMES_AND_NUMBERS_BYTES = 512
MAX_LEADER_EPOCH_BYTES = 24


def fitting(sizes_bytes: Iterable[int]) -> int:
    """How many of the rows of these sizes one message holds: at least one, where there is one."""
    sums = list(accumulate(sizes_bytes))
    return max(bisect_right(sums, MAX_PAGE_BYTES), min(len(sums), 1))


SEGMENT_BYTES = f"""{MAX_NAMES_AND_NUMBERS_BYTES} + coalesce(octet_length(s.custom_metadata), 0)
        + {MAX_LEADER_EPOCH_BYTES} * cardinality(s.leader_epochs)"""
"""SQL for segment_size_bytes, of `segments AS s`: what does not fit need not be read."""


def segment_size_bytes(row: AnyRow) -> int:
    """No less than a segment takes in a message."""
    of_epochs = MAX_LEADER_EPOCH_BYTES * len(row.leader_epochs)
    return MAX_NAMES_AND_NUMBERS_BYTES + len(row.custom_metadata or b"") + of_epochs
