"""Read where a read begins and ends, with the options and meaning of Spark's kafka source."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.api.ids import TopicIdPartition
from services.api.validation import INT64_MAX
from spark_jobs.source_options import SourceOptions, bad_option

LATEST, EARLIEST = -1, -2
"""The numbers of these offsets, as Kafka's ListOffsets has them."""

_NAMES = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS = 'must be earliest, latest or like {"payments":{"0":23,"1":-1}}'
_TIMES = 'must be like {"payments":{"0":1767225600000}}, milliseconds since 1970'

PartitionNumbers = Mapping[str, Mapping[int, int]]
"""A number for each partition of each topic."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read begins, inclusive, or ends, exclusive.

    Attributes:
        option: that states it, for errors.
        everywhere: EARLIEST, LATEST or, if `is_time`, milliseconds since 1970; None if
            `by_partition` states each.
        by_partition: an offset, EARLIEST or LATEST; if `is_time`, milliseconds.
        is_time: it is the first offset whose record is that late, or later.
    """

    option: str
    everywhere: int | None = None
    by_partition: PartitionNumbers = field(default_factory=dict)
    is_time: bool = False

    def states(self, number: int) -> bool:
        """Return whether it is EARLIEST or LATEST, as `number`, of a partition."""
        stated = [each for of_topic in self.by_partition.values() for each in of_topic.values()]
        return not self.is_time and number in (self.everywhere, *stated)

    def of(self, tp: TopicIdPartition) -> int:
        """Return the number of a partition.

        Raises:
            InvalidRequestError: it states partitions, and not this one.
        """
        if self.everywhere is not None:
            return self.everywhere
        number = self.by_partition.get(tp.topic, {}).get(tp.partition)
        if number is None:
            example = "" if self.is_time else "; -1 is the latest offset, -2 the earliest"
            raise bad_option(
                self.option,
                f"states some partitions and not {tp.topic}-{tp.partition}: state each{example}",
            )
        return number


def starting_bound(options: SourceOptions, *, is_stream: bool) -> Bound:
    """Read where a read begins: by default a query at the earliest, a stream at the latest offset.

    Raises:
        InvalidRequestError: a value is wrong.
    """
    return _bound(options, "starting", LATEST if is_stream else EARLIEST)


def ending_bound(options: SourceOptions) -> Bound:
    """Read where a read ends: by default at the latest offset.

    Raises:
        InvalidRequestError: a value is wrong, or the read is to end at the earliest offset.
    """
    bound = _bound(options, "ending", LATEST)
    if bound.states(EARLIEST):
        raise bad_option(bound.option, "a read cannot end at the earliest offset")
    return bound


def _bound(options: SourceOptions, which: str, default: int) -> Bound:
    """Read the one of the options that counts: a time before times, and these before offsets."""
    one_time, times = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    offsets = f"{which}Offsets"
    if options.text(one_time):
        return Bound(one_time, options.number(one_time, None), is_time=True)
    if options.text(times):
        return Bound(times, None, _numbers(options, times, _TIMES, at_least=0), is_time=True)
    name = options.text(offsets)
    if not name or name.lower() in _NAMES:
        return Bound(offsets, _NAMES.get(name.lower(), default))
    return Bound(offsets, None, _numbers(options, offsets, _OFFSETS, at_least=EARLIEST))


def _numbers(
    options: SourceOptions, name: str, rule: str, *, at_least: int
) -> dict[str, dict[int, int]]:
    def read(number: Any) -> int:
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not at_least <= number <= INT64_MAX:
            raise ValueError
        return int(number)

    return by_topic(
        options, name, rule, lambda of: {int(number): read(each) for number, each in of.items()}
    )


def by_topic(
    options: SourceOptions, name: str, rule: str, read: Callable[[Any], Any]
) -> dict[str, Any]:
    """Read an option that is a JSON object with a value for each topic.

    Raises:
        InvalidRequestError: it is not JSON, or no such object; says the rule.
    """
    text = options.text(name)
    try:
        return {str(topic): read(value) for topic, value in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as e:
        raise bad_option(name, f"{rule}, is {text[:64]!r}") from e
