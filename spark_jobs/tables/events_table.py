"""Read audit trails: the table `events`."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import EventQuery, PartitionEvent
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_events
from spark_jobs.sweeps.plan import Row, batches_of
from spark_jobs.tables.columns import INT, LONG, STRING, TIMESTAMP, micros
from spark_jobs.tables.table import Table, TableQuery, in_shards, known_partitions

_TEXTS = (
    *("from_state", "to_state", "key", "actor", "reason"),
    *("rule_detail", "plan_id", "request_id", "call_id"),
)


class EventsTable(Table):
    """The audit trails of known partitions, and of removed ones that are named."""

    name = "events"
    columns = pa.schema(
        {
            "topic": STRING,
            "topic_id": STRING,
            "partition": INT,
            "revision": LONG,
            "at": TIMESTAMP,
            "kind": STRING,
            "from_state": STRING,
            "to_state": STRING,
            "segment_id": STRING,
            "key": STRING,
            "actor": STRING,
            "broker_id": INT,
            "broker_leader_epoch": INT,
            "reason": STRING,
            "rule_detail": STRING,
            "plan_id": STRING,
            "request_id": STRING,
            "call_id": STRING,
            "repeat_count": INT,
        }
    )
    filters: ClassVar = ("topic", "topicId", "partition")

    def tasks(self, rlmm: RemoteLogMetadataManager, query: TableQuery) -> list[Any]:
        known = [
            tp
            for summary in known_partitions(rlmm, query)
            for tp in [summary.topic_id_partition]
            if tp.topic_id in (query.topic_ids or {tp.topic_id})
            and tp.partition in (query.partitions or {tp.partition})
        ]
        removed = sorted(set(_named_wholly(query)) - set(known))
        return in_shards([*known, *removed], query.shards)

    def batches(
        self, rlmm: RemoteLogMetadataManager, task: list[TopicIdPartition]
    ) -> Iterator[pa.RecordBatch]:
        for tp in task:
            yield from batches_of(_rows(rlmm, tp), self.columns)


def _rows(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> Iterator[Row]:
    try:
        for event in all_events(rlmm, EventQuery(tp)):
            yield _event_row(tp, event)
    except RemoteResourceNotFoundError:
        return  # there never was such a partition, or its events were purged


def _named_wholly(query: TableQuery) -> Iterator[TopicIdPartition]:
    """Yield the partitions that name, id and number give, which RLMM need not know any more."""
    if len(query.topics) != 1:
        return
    [name] = query.topics
    for topic_id in query.topic_ids:
        for number in query.partitions:
            try:
                yield TopicIdPartition(topic_id, name, number)
            except InvalidRequestError:
                continue  # an option may name what no partition can be


def _event_row(tp: TopicIdPartition, event: PartitionEvent) -> Row:
    segment_id = event.segment_id
    return {
        "topic": tp.topic,
        "topic_id": uuid_to_text(tp.topic_id),
        "partition": tp.partition,
        "revision": event.revision,
        "at": micros(event.at_ms),
        "kind": event.kind,
        "segment_id": None if segment_id is None else uuid_to_text(segment_id),
        "broker_id": None if event.broker_id < 0 else event.broker_id,
        "broker_leader_epoch": event.broker_leader_epoch,
        "repeat_count": event.repeat_count,
        # An empty text means "not set" in RLMM's answers.
        **{name: getattr(event, name) or None for name in _TEXTS},
    }
