"""Cut long lists into bounded parts."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in order, at most `size` at a time."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch
