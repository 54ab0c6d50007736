"""Leave out what cannot meet the filters of a query: partitions, offsets, times. Pure rules."""

from collections.abc import Sequence
from dataclasses import replace

from services.api.ids import TopicIdPartition
from spark_jobs.records.options import RecordsOptions
from spark_jobs.tables.conditions import Condition, allowed_values, lower_bound, upper_bound

FILTERED_COLUMNS = ("topic", "partition", "offset", "timestamp")


def is_selected(tp: TopicIdPartition, conditions: Sequence[Condition]) -> bool:
    """Return whether rows of a partition may meet the conditions."""
    values = {"topic": tp.topic, "partition": tp.partition}
    return all(
        (allowed := allowed_values(conditions, column)) is None or value in allowed
        for column, value in values.items()
    )


def narrowed(options: RecordsOptions, conditions: Sequence[Condition]) -> RecordsOptions:
    """Return options that read no offsets and times outside of the conditions' bounds."""
    since = lower_bound(conditions, "timestamp")
    until = upper_bound(conditions, "timestamp")
    return replace(
        options,
        from_offset=_greatest(options.from_offset, lower_bound(conditions, "offset")),
        to_offset=_least(options.to_offset, upper_bound(conditions, "offset")),
        from_time_ms=_greatest(options.from_time_ms, None if since is None else since // 1_000),
        to_time_ms=_least(options.to_time_ms, None if until is None else until // 1_000),
    )


def _greatest(*values: int | None) -> int | None:
    return max((each for each in values if each is not None), default=None)


def _least(*values: int | None) -> int | None:
    return min((each for each in values if each is not None), default=None)
