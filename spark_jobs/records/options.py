"""Read the options of the records source: those of Spark's kafka source, and a few more."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from services.api.validation import INT32_MAX
from services.common.inflate import DEFAULT_LIMIT_BYTES
from spark_jobs.records.bounds import Bound, by_topic, ending_bound, starting_bound
from spark_jobs.source_options import CONNECTION, SourceOptions, bad_option

RECORDS, OFFSETS = "records", "offsets"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
_PARTITIONS = ("subscribe", "subscribePattern", "assign")
ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
OPTIONS = (
    "table",
    *CONNECTION,
    *_PARTITIONS,
    "topicId",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    *ENDING,
    "minPartitions",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "kafka.isolation.level",
    "maxBatchBytes",
    "splitBytes",
    "directReads",
)
DEFAULT_SPLIT_BYTES = 64 * 1024 * 1024
SMALLEST_SPLIT_BYTES = 4 * 1024
_ASSIGN = 'must be like {"payments":[0,1]}'


@dataclass(frozen=True, slots=True)
class RecordsOptions:
    """What is read, and how.

    Attributes:
        topics: the names of `subscribe`, or of the keys of `assign`; empty with `pattern`.
        pattern: that the whole name of a topic matches.
        partitions: of `assign`, by topic; None for all.
        topic_ids: of these only, if there are any.
        starting, ending: the first offset, inclusive, and the last one, exclusive.
        may_match_nothing: begin at the latest offset if no record is as late as the starting time;
            otherwise such a read fails.
        is_committed: leave out the records of aborted transactions.
        max_batch_bytes: most bytes of a batch, also decompressed.
        split_bytes: about how much of a log a task reads.
        min_partitions: of Spark: about how many tasks there are at least.
        max_offsets_per_trigger: of a stream, over all partitions; None for no limit.
        fail_on_data_loss: if offsets that are to be read are gone.
        direct_reads: read logs from the store itself, if RSM hands out URLs.
    """

    table: str
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    partitions: Mapping[str, frozenset[int]] | None
    topic_ids: tuple[UUID, ...]
    starting: Bound
    ending: Bound
    may_match_nothing: bool
    is_committed: bool
    max_batch_bytes: int
    split_bytes: int
    min_partitions: int
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    include_headers: bool
    direct_reads: bool

    def names(self, topic: str, partition: int) -> bool:
        """Return whether the options name this partition of a topic that there is."""
        if self.pattern is not None:
            return self.pattern.fullmatch(topic) is not None
        partitions = None if self.partitions is None else self.partitions.get(topic)
        return topic in self.topics and (partitions is None or partition in partitions)


def records_options(
    given: Mapping[str, str], *, is_stream: bool = False
) -> tuple[SourceOptions, RecordsOptions]:
    """Check the options of a read.

    Raises:
        InvalidRequestError: one is wrong; names the option.
    """
    options = SourceOptions(given, OPTIONS)
    options.check_connection()
    chosen = [name for name in _PARTITIONS if options.text(name)]
    if len(chosen) != 1:
        raise bad_option(chosen[1] if chosen else "subscribe", f"give one of {_PARTITIONS}")
    partitions = _assigned(options) if options.text("assign") else None
    isolation = options.choice("kafka.isolation.level", (COMMITTED, UNCOMMITTED), UNCOMMITTED)
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    number = options.number
    return options, RecordsOptions(
        table=options.choice("table", (RECORDS, OFFSETS), RECORDS),
        topics=options.texts("subscribe") if partitions is None else tuple(partitions),
        pattern=_pattern(options),
        partitions=partitions,
        topic_ids=options.uuids("topicId"),
        starting=starting_bound(options, is_stream=is_stream),
        ending=ending_bound(options),
        may_match_nothing=strategy == "latest",
        is_committed=isolation == COMMITTED,
        max_batch_bytes=number("maxBatchBytes", None, 1, INT32_MAX) or DEFAULT_LIMIT_BYTES,
        split_bytes=number("splitBytes", None, SMALLEST_SPLIT_BYTES) or DEFAULT_SPLIT_BYTES,
        min_partitions=number("minPartitions", None, 1) or 1,
        max_offsets_per_trigger=number("maxOffsetsPerTrigger", None, 1),
        fail_on_data_loss=options.choice("failOnDataLoss", ("true", "false"), "true") == "true",
        include_headers=options.boolean("includeHeaders"),
        direct_reads=options.boolean("directReads"),
    )


def _assigned(options: SourceOptions) -> dict[str, frozenset[int]]:
    def numbers(partitions: list[int]) -> frozenset[int]:
        if not partitions or any(each < 0 for each in partitions):
            raise ValueError
        return frozenset(map(int, partitions))

    assigned = by_topic(options, "assign", _ASSIGN, numbers)
    if not assigned:
        raise bad_option("assign", _ASSIGN)
    return assigned


def _pattern(options: SourceOptions) -> re.Pattern[str] | None:
    text = options.text("subscribePattern")
    try:
        return re.compile(text) if text else None
    except re.error as e:
        raise bad_option("subscribePattern", f"{text[:64]!r} is no regular expression: {e}") from e
