"""Read the options of the records source."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from services.api.validation import INT32_MAX
from services.common.inflate import DEFAULT_LIMIT_BYTES
from spark_jobs.source_options import CONNECTION, SourceOptions, bad_option

RECORDS, OFFSETS = "records", "offsets"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
OPTIONS = (
    "table",
    *CONNECTION,
    "topic",
    "topicId",
    "partition",
    "fromOffset",
    "toOffset",
    "fromTime",
    "toTime",
    "isolation",
    "maxBatchBytes",
    "splitBytes",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "requireAll",
    "directReads",
)
DEFAULT_SPLIT_BYTES = 64 * 1024 * 1024
_SMALLEST_SPLIT_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class RecordsOptions:
    """What is read, and how.

    Attributes:
        topics, topic_ids, partitions: empty for all of the others' choice.
        from_offset: None for the first offset in the tier.
        to_offset: inclusive; None for the last offset that can be read.
        from_time_ms, to_time_ms: of records, inclusive; None for all.
        is_committed: leave out the records of aborted transactions.
        max_batch_bytes: most bytes of a batch, also decompressed.
        split_bytes: about how much of a log a task reads.
        max_offsets_per_trigger: of a stream, over all partitions; None for no limit.
        fail_on_data_loss: of a stream, if offsets that it has not read yet are gone.
        require_all: of a read, fail if an offset from `from_offset` to `to_offset` is not there.
        direct_reads: read logs from the store itself, if RSM hands out URLs.
    """

    table: str
    topics: tuple[str, ...]
    topic_ids: tuple[UUID, ...]
    partitions: tuple[int, ...]
    from_offset: int | None
    to_offset: int | None
    from_time_ms: int | None
    to_time_ms: int | None
    is_committed: bool
    max_batch_bytes: int
    split_bytes: int
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    require_all: bool
    direct_reads: bool


def records_options(given: Mapping[str, str]) -> tuple[SourceOptions, RecordsOptions]:
    """Check the options of a read.

    Raises:
        InvalidRequestError: one is wrong; names the option.
    """
    options = SourceOptions(given, OPTIONS)
    options.check_connection()
    topics, topic_ids = options.texts("topic"), options.uuids("topicId")
    if not topics and not topic_ids:
        raise bad_option("topic", "give the names of topics, or their ids as topicId")
    isolation = options.choice("isolation", (COMMITTED, UNCOMMITTED), UNCOMMITTED)
    number = options.number
    return options, RecordsOptions(
        table=options.choice("table", (RECORDS, OFFSETS), RECORDS),
        topics=topics,
        topic_ids=topic_ids,
        partitions=options.numbers("partition"),
        from_offset=number("fromOffset", None),
        to_offset=number("toOffset", None),
        from_time_ms=options.time_ms("fromTime"),
        to_time_ms=options.time_ms("toTime"),
        is_committed=isolation == COMMITTED,
        max_batch_bytes=number("maxBatchBytes", None, 1, INT32_MAX) or DEFAULT_LIMIT_BYTES,
        split_bytes=number("splitBytes", None, _SMALLEST_SPLIT_BYTES) or DEFAULT_SPLIT_BYTES,
        max_offsets_per_trigger=number("maxOffsetsPerTrigger", None, 1),
        fail_on_data_loss=options.choice("failOnDataLoss", ("true", "false"), "true") == "true",
        require_all=_require_all(options),
        direct_reads=options.boolean("directReads"),
    )


def _require_all(options: SourceOptions) -> bool:
    wanted = options.boolean("requireAll")
    if wanted and not (options.text("fromOffset") and options.text("toOffset")):
        raise bad_option("requireAll", "give fromOffset and toOffset too")
    return wanted
