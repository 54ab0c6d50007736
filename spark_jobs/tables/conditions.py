"""Select rows: Spark's filters and the options of a read as conditions on columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)


class Relation(Enum):
    """The relation between a column and a value."""

    EQUAL = auto()
    EQUAL_OR_BOTH_NULL = auto()
    ABOVE = auto()
    AT_LEAST = auto()
    BELOW = auto()
    AT_MOST = auto()
    IN = auto()
    IS_NULL = auto()
    STARTS_WITH = auto()
    ENDS_WITH = auto()
    CONTAINS = auto()


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on one column.

    Attributes:
        value: a tuple for IN, None for IS_NULL; a time is in microseconds since 1970.
        negated: a null is still not selected, but by IS_NULL and EQUAL_OR_BOTH_NULL.
    """

    column: str
    relation: Relation
    value: Any = None
    negated: bool = False


_RELATIONS: dict[type[Filter], Relation] = {
    EqualTo: Relation.EQUAL,
    EqualNullSafe: Relation.EQUAL_OR_BOTH_NULL,
    GreaterThan: Relation.ABOVE,
    GreaterThanOrEqual: Relation.AT_LEAST,
    LessThan: Relation.BELOW,
    LessThanOrEqual: Relation.AT_MOST,
    In: Relation.IN,
    IsNull: Relation.IS_NULL,
    IsNotNull: Relation.IS_NULL,
    StringStartsWith: Relation.STARTS_WITH,
    StringEndsWith: Relation.ENDS_WITH,
    StringContains: Relation.CONTAINS,
}


def condition_of(found: Filter, columns: Iterable[str]) -> Condition | None:
    """Return the condition of a filter on one of these columns; None if Spark has to apply it."""
    negated = isinstance(found, Not)
    inner = found.child if isinstance(found, Not) else found
    relation = _RELATIONS.get(type(inner))
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if relation is None or len(path) != 1 or path[0] not in columns:
        return None
    value: Any = getattr(inner, "value", None)
    # `x in (1, null)` is null, not false, if x is not 1: rare, and left to Spark.
    if (relation is Relation.IN and None in value) or (
        relation is Relation.EQUAL and value is None
    ):
        return None
    plain = tuple(map(_plain, value)) if relation is Relation.IN else _plain(value)
    return Condition(path[0], relation, plain, negated != isinstance(inner, IsNotNull))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _plain(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return (value.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def selected(batch: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """Return the rows of a batch that meet every condition, as Spark would select them."""
    for condition in conditions:
        batch = batch.filter(_mask(batch.column(condition.column), condition))
    return batch


def _mask(column: pa.Array, condition: Condition) -> pa.Array:
    """Return whether each value meets the condition; null counts as no."""
    if condition.relation is Relation.IS_NULL:
        mask = pc.is_null(column)
    elif condition.relation is Relation.EQUAL_OR_BOTH_NULL:
        mask = _equal_or_both_null(column, condition.value)
    elif condition.relation is Relation.IN:
        wanted = pa.array(list(condition.value), column.type)
        mask = pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=wanted), None)
    elif condition.relation in _OF_TEXTS:
        mask = _OF_TEXTS[condition.relation](column, condition.value)
    else:
        mask = _COMPARISONS[condition.relation](column, pa.scalar(condition.value, column.type))
    return pc.invert(mask) if condition.negated else mask


def _equal_or_both_null(column: pa.Array, value: Any) -> pa.Array:
    if value is None:
        return pc.is_null(column)
    return pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)


_COMPARISONS = {
    Relation.EQUAL: pc.equal,
    Relation.ABOVE: pc.greater,
    Relation.AT_LEAST: pc.greater_equal,
    Relation.BELOW: pc.less,
    Relation.AT_MOST: pc.less_equal,
}

_OF_TEXTS = {
    Relation.STARTS_WITH: pc.starts_with,
    Relation.ENDS_WITH: pc.ends_with,
    Relation.CONTAINS: pc.match_substring,
}


def allowed_values(conditions: Iterable[Condition], column: str) -> frozenset[Any] | None:
    """Return the only values that the column may have; None if it may have others."""
    allowed: frozenset[Any] | None = None
    for condition in conditions:
        if condition.column != column or condition.negated:
            continue
        if condition.relation is Relation.IN:
            values = frozenset(condition.value)
        elif condition.relation in (Relation.EQUAL, Relation.EQUAL_OR_BOTH_NULL):
            values = frozenset([condition.value])
        else:
            continue
        allowed = values if allowed is None else allowed & values
    return allowed


def lower_bound(conditions: Iterable[Condition], column: str) -> Any:
    """Return a value below which the column cannot be; None if there is none."""
    relations = (Relation.EQUAL, Relation.ABOVE, Relation.AT_LEAST)
    return max(_values(conditions, column, relations), default=None)


def upper_bound(conditions: Iterable[Condition], column: str) -> Any:
    """Return a value above which the column cannot be; None if there is none."""
    relations = (Relation.EQUAL, Relation.BELOW, Relation.AT_MOST)
    return min(_values(conditions, column, relations), default=None)


def _values(
    conditions: Iterable[Condition], column: str, relations: Sequence[Relation]
) -> list[Any]:
    return [
        condition.value
        for condition in conditions
        if condition.column == column and condition.relation in relations and not condition.negated
    ]
