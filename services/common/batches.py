"""Split items into batches."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in order, at most `size` at a time, and read no further than needed."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch
