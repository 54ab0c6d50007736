"""Define what each table does: plan tasks on the driver, and read one task on an executor."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import pyarrow as pa

from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
)
from spark_jobs.source_options import SourceOptions, bad_option

FILTERS = ("topic", "topicId", "partition", "state")
"""The options that restrict what is requested of RLMM."""

DEFAULT_SHARDS = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableQuery:
    """What a read requests of RLMM.

    Attributes:
        topics: names; empty for all.
        topic_ids, partitions: of events; empty for all.
        states: names of states; empty for all.
        shards: about how many tasks read the table.
    """

    topics: tuple[str, ...] = ()
    topic_ids: tuple[UUID, ...] = ()
    partitions: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    shards: int = DEFAULT_SHARDS


class Table(ABC):
    """One table.

    Attributes:
        columns: what a row has.
        filters: the options of FILTERS that the table has.
        states: the values of the option `state`.
    """

    name: str
    columns: pa.Schema
    filters: ClassVar[Sequence[str]]
    states: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def tasks(self, rlmm: RemoteLogMetadataManager, query: TableQuery) -> list[Any]:
        """Plan what each task reads; every row is read by one task."""

    @abstractmethod
    def batches(self, rlmm: RemoteLogMetadataManager, task: Any) -> Iterator[pa.RecordBatch]:
        """Read a task."""

    def query(self, options: SourceOptions, shards: int) -> TableQuery:
        """Read the options.

        Raises:
            InvalidRequestError: a value is wrong, or the table has no such option; names it.
        """
        others = [name for name in FILTERS if name not in self.filters]
        options.refuse(others, f"the table {self.name} does not have it; use where()")
        states = tuple(state.upper() for state in options.texts("state"))
        for state in states:
            if state not in self.states:
                allowed = ", ".join(self.states)
                raise bad_option("state", f"must be one of {allowed}, is {state[:64]!r}")
        return TableQuery(
            options.texts("topic"),
            options.uuids("topicId"),
            options.numbers("partition"),
            states,
            shards,
        )


def check_known(rlmm: RemoteLogMetadataManager, query: TableQuery) -> None:
    """Raise InvalidRequestError if RLMM does not know a topic; one named by its id may be gone."""
    for topic in () if query.topic_ids else query.topics:
        if not rlmm.list_partitions(topic=topic, page_size=1).partitions:
            raise bad_option(
                "topic",
                f"RLMM knows no topic {topic!r}; `sediment topics list` lists them. Of a topic "
                "that was removed only events remain: give topicId and partition too",
            )


def known_partitions(
    rlmm: RemoteLogMetadataManager, query: TableQuery
) -> Iterator[PartitionSummary]:
    """Yield the known partitions of the query's topics, one page in memory at a time."""
    states = [RemotePartitionDeleteState[name] for name in query.states]
    for topic in query.topics or ("",):
        yield from all_partitions(rlmm, topic=topic, delete_states=states)


def in_shards(items: Sequence[T], shards: int) -> list[list[T]]:
    """Split items into at most `shards` lists of about equal length, in order."""
    size = max(-(-len(items) // shards), 1)
    return [list(items[at : at + size]) for at in range(0, len(items), size)]
