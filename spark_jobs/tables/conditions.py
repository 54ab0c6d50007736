"""Select rows: the options of a read as conditions on columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class Relation(Enum):
    """The relation between a column and a value."""

    AT_LEAST = auto()
    AT_MOST = auto()
    IN = auto()


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on one column; a null does not meet it.

    Attributes:
        value: a tuple for IN; a time is in microseconds since 1970.
    """

    column: str
    relation: Relation
    value: Any


def selected(batch: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """Return the rows of a batch that meet every condition."""
    for condition in conditions:
        batch = batch.filter(_mask(batch.column(condition.column), condition))
    return batch


def _mask(column: pa.Array, condition: Condition) -> pa.Array:
    """Return whether each value meets the condition; null counts as no."""
    if condition.relation is Relation.IN:
        return pc.is_in(column, value_set=pa.array(list(condition.value), column.type))
    compare = pc.greater_equal if condition.relation is Relation.AT_LEAST else pc.less_equal
    return compare(column, pa.scalar(condition.value, column.type))


def allowed_values(conditions: Iterable[Condition], column: str) -> frozenset[Any] | None:
    """Return the only values that the column may have; None if it may have others."""
    for condition in conditions:
        if condition.column == column and condition.relation is Relation.IN:
            return frozenset(condition.value)
    return None


def lower_bound(conditions: Iterable[Condition], column: str) -> Any:
    """Return a value below which the column cannot be; None if there is none."""
    for condition in conditions:
        if condition.column == column and condition.relation is Relation.AT_LEAST:
            return condition.value
    return None
