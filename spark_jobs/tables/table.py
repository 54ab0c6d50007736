"""Define what each table does: plan tasks on the driver, and read one task on an executor."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import pyarrow as pa

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.partitions import Verification
from services.api.remote_log_metadata_manager import PartitionSummary, RemoteLogMetadataManager
from services.api.validation import require
from spark_jobs.connections import Services
from spark_jobs.source_options import SourceOptions, bad_option
from spark_jobs.tables.columns import Columns, micros
from spark_jobs.tables.conditions import Condition, Relation, allowed_values

FILTERS = (
    "topic",
    "topicId",
    "partition",
    "state",
    "fromOffset",
    "toOffset",
    "fromTime",
    "toTime",
)
"""The options that select rows."""

FIGURES = ("ages", "pricePerGibMonth", "partSizeBytes", "pricePerThousandWrites")
"""The options of the table usage."""

DEFAULT_SHARDS = 8
T = TypeVar("T")
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class Connected:
    """RLMM, and the one retry loop around calls to it."""

    rlmm: RemoteLogMetadataManager
    services: Services

    def call(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a method of RLMM; retry while RLMM is down."""
        made: T = self.services.retrying()(method, *arguments, **named)
        return made


class Table(ABC):
    """One table.

    Attributes:
        columns: what a row has.
        option_columns: the column and relation of each option of FILTERS that the table has.
    """

    name: str
    columns: Columns
    option_columns: ClassVar[Mapping[str, tuple[str, Relation]]]

    def configured(self, options: SourceOptions) -> "Table":
        """Return the table as the options that only some tables have want it.

        Raises:
            InvalidRequestError: a value is wrong, or the table has no such option.
        """
        options.refuse(FIGURES, f"only the table usage has it, not {self.name}")
        return self

    @abstractmethod
    def tasks(
        self, connected: Connected, conditions: Sequence[Condition], shards: int
    ) -> list[Any]:
        """Plan what each task reads; every row is read by one task."""

    @abstractmethod
    def batches(
        self, connected: Connected, task: Any, conditions: Sequence[Condition]
    ) -> Iterator[pa.RecordBatch]:
        """Read a task; rows that do not meet the conditions may be among them."""

    def conditions(self, options: SourceOptions) -> list[Condition]:
        """Read the options that select rows.

        Raises:
            InvalidRequestError: a value is wrong, or the table has no such column; names the
                option.
        """
        others = [name for name in FILTERS if name not in self.option_columns]
        options.refuse(others, f"the table {self.name} has nothing to select by it")
        values: dict[str, Any] = {
            "topic": options.texts("topic"),
            "topicId": tuple(map(uuid_to_text, options.uuids("topicId"))),
            "partition": options.numbers("partition"),
            "state": tuple(state.upper() for state in options.texts("state")),
            "fromOffset": options.number("fromOffset", None),
            "toOffset": options.number("toOffset", None),
            "fromTime": micros(options.time_ms("fromTime")),
            "toTime": micros(options.time_ms("toTime")),
        }
        self.check_states(values["state"])
        return [
            Condition(*self.option_columns[name], value)
            for name, value in values.items()
            if value not in (None, ())
        ]

    def check_states(self, states: Sequence[str]) -> None:
        """Raise InvalidRequestError if a state of the option `state` does not exist."""
        require(not states, "option state", f"the table {self.name} has no states")

    def check_known(self, connected: Connected, options: SourceOptions) -> None:
        """Raise InvalidRequestError if RLMM does not know a topic of the options."""
        if options.text("topicId"):
            return
        for topic in options.texts("topic"):
            if not connected.call(
                connected.rlmm.list_partitions, topic=topic, page_size=1
            ).partitions:
                raise bad_option(
                    "topic",
                    f"RLMM knows no topic {topic!r}; `sediment topics list` lists them. Of a topic "
                    "that was removed only events remain: give topicId and partition too",
                )


def check_names(states: Sequence[str], allowed: type[Enum]) -> None:
    """Raise InvalidRequestError if a state of the option `state` is no member of an enum."""
    for state in states:
        if state not in allowed.__members__:
            raise bad_option(
                "state", f"must be one of {', '.join(allowed.__members__)}, is {state[:64]!r}"
            )


def members(conditions: Sequence[Condition], column: str, of: type[E]) -> list[E] | None:
    """Return the members of an enum that a column may name; None if it may have any value."""
    allowed = allowed_values(conditions, column)
    if allowed is None or None in allowed:
        return None
    return [each for each in of if each.value in allowed]


def allowed_ids(conditions: Sequence[Condition], column: str) -> list[UUID] | None:
    """Return the ids that a column may have; None if it may have others.

    A text that is no id in Kafka's form equals no value of the column.
    """
    allowed = allowed_values(conditions, column)
    if allowed is None:
        return None
    found = []
    for text in allowed:
        try:
            uuid = uuid_from_text(str(text), column)
        except InvalidRequestError:
            continue
        if uuid_to_text(uuid) == text:
            found.append(uuid)
    return found


def known_partitions(
    connected: Connected, conditions: Sequence[Condition]
) -> Iterator[PartitionSummary]:
    """Yield the known partitions that the conditions allow, one page in memory at a time."""
    for topic in _names(conditions):
        token = ""
        while True:
            page = connected.call(connected.rlmm.list_partitions, topic=topic, page_token=token)
            for summary in page.partitions:
                if is_allowed(summary.topic_id_partition, conditions):
                    yield summary
            token = page.next_page_token
            if not token:
                break


def known_verifications(
    connected: Connected, conditions: Sequence[Condition]
) -> Iterator[Verification]:
    """Yield the last verifications of topics that the conditions allow, and perhaps of others."""
    for topic in _names(conditions):
        token = ""
        while True:
            page = connected.call(connected.rlmm.list_verifications, topic, page_token=token)
            yield from page.verifications
            token = page.next_page_token
            if not token:
                break


def _names(conditions: Sequence[Condition]) -> list[str]:
    """Return the topics that the conditions name; one "" if they do not name any."""
    topics = allowed_values(conditions, "topic")
    return [""] if topics is None else sorted(map(str, topics - {None, ""}))


def is_allowed(tp: TopicIdPartition, conditions: Sequence[Condition]) -> bool:
    """Return whether rows of a partition may meet the conditions."""
    values = {"topic_id": uuid_to_text(tp.topic_id), "partition": tp.partition}
    return all(
        (allowed := allowed_values(conditions, column)) is None or value in allowed
        for column, value in values.items()
    )


def in_shards(items: Sequence[T], shards: int) -> list[list[T]]:
    """Split items into at most `shards` lists of about equal length, in order."""
    size = max(-(-len(items) // shards), 1)
    return [list(items[at : at + size]) for at in range(0, len(items), size)]


PARTITION_OPTIONS: Mapping[str, tuple[str, Relation]] = {
    "topic": ("topic", Relation.IN),
    "topicId": ("topic_id", Relation.IN),
    "partition": ("partition", Relation.IN),
}
"""The options of a table whose rows are of partitions."""
