"""Read audit trails, and what is wrong in the stores: the tables `events` and `anomalies`."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import (
    AnomalyQuery,
    EventQuery,
    PartitionEvent,
    RemotePartitionDeleteState,
    SeenAnomaly,
)
from services.api.segments import RemoteLogSegmentState
from spark_jobs.source_options import bad_option
from spark_jobs.tables.columns import Columns, Kind, micros, text_or_none
from spark_jobs.tables.conditions import Condition, Relation, allowed_values, lower_bound
from spark_jobs.tables.table import (
    PARTITION_OPTIONS,
    Connected,
    Table,
    allowed_ids,
    in_shards,
    is_allowed,
    known_partitions,
)


class EventsTable(Table):
    """The audit trails of known partitions, and of removed ones that are named."""

    name = "events"
    columns = Columns(
        {
            "topic": Kind.STRING,
            "topic_id": Kind.STRING,
            "partition": Kind.INT,
            "revision": Kind.LONG,
            "at": Kind.TIMESTAMP,
            "kind": Kind.STRING,
            "from_state": Kind.STRING,
            "to_state": Kind.STRING,
            "segment_id": Kind.STRING,
            "key": Kind.STRING,
            "actor": Kind.STRING,
            "broker_id": Kind.INT,
            "broker_leader_epoch": Kind.INT,
            "reason": Kind.STRING,
            "rule_detail": Kind.STRING,
            "plan_id": Kind.STRING,
            "request_id": Kind.STRING,
            "call_id": Kind.STRING,
            "repeat_count": Kind.INT,
        }
    )
    option_columns: ClassVar = {
        **PARTITION_OPTIONS,
        "state": ("to_state", Relation.IN),
        "fromTime": ("at", Relation.AT_LEAST),
        "toTime": ("at", Relation.AT_MOST),
    }

    def check_states(self, states: Sequence[str]) -> None:
        known = {*RemoteLogSegmentState.__members__, *RemotePartitionDeleteState.__members__}
        for state in states:
            if state not in known:
                names = ", ".join(sorted(known))
                raise bad_option("state", f"must be one of {names}, is {state[:64]!r}")

    def tasks(
        self, connected: Connected, conditions: Sequence[Condition], shards: int
    ) -> list[Any]:
        known = [s.topic_id_partition for s in known_partitions(connected, conditions)]
        removed = sorted(set(_named_wholly(conditions)) - set(known))
        return in_shards([*known, *removed], shards)

    def batches(
        self,
        connected: Connected,
        task: list[TopicIdPartition],
        conditions: Sequence[Condition],
    ) -> Iterator[pa.RecordBatch]:
        for tp in task:
            yield from self.columns.batches(self._rows(connected, tp))

    def _rows(self, connected: Connected, tp: TopicIdPartition) -> Iterator[dict[str, Any]]:
        query, token = EventQuery(tp), ""
        try:
            while True:
                page = connected.call(connected.rlmm.list_events, query, page_token=token)
                for event in page.events:
                    yield _event_row(tp, event)
                token = page.next_page_token
                if not token:
                    return
        except RemoteResourceNotFoundError:
            return  # there never was such a partition, or its events were purged


def _named_wholly(conditions: Sequence[Condition]) -> Iterator[TopicIdPartition]:
    """Yield the partitions that name, id and number give, which RLMM need not know any more."""
    names, numbers = (allowed_values(conditions, name) for name in ("topic", "partition"))
    ids = allowed_ids(conditions, "topic_id")
    if names is None or numbers is None or ids is None or len(names) != 1:
        return
    [name] = names
    for topic_id in ids:
        for number in numbers:
            try:
                tp = TopicIdPartition(topic_id, name, number)
            except InvalidRequestError:
                continue  # an option may name what no partition can be
            if is_allowed(tp, conditions):
                yield tp


def _event_row(tp: TopicIdPartition, event: PartitionEvent) -> dict[str, Any]:
    segment_id = event.segment_id
    return {
        "topic": tp.topic,
        "topic_id": uuid_to_text(tp.topic_id),
        "partition": tp.partition,
        "revision": event.revision,
        "at": micros(event.at_ms),
        "kind": event.kind,
        "from_state": text_or_none(event.from_state),
        "to_state": text_or_none(event.to_state),
        "segment_id": None if segment_id is None else uuid_to_text(segment_id),
        "key": text_or_none(event.key),
        "actor": text_or_none(event.actor),
        "broker_id": None if event.broker_id < 0 else event.broker_id,
        "broker_leader_epoch": event.broker_leader_epoch,
        "reason": text_or_none(event.reason),
        "rule_detail": text_or_none(event.rule_detail),
        "plan_id": text_or_none(event.plan_id),
        "request_id": text_or_none(event.request_id),
        "call_id": text_or_none(event.call_id),
        "repeat_count": event.repeat_count,
    }


class AnomaliesTable(Table):
    """Every recorded difference between metadata and stores."""

    name = "anomalies"
    columns = Columns(
        {
            "topic_id": Kind.STRING,
            "partition": Kind.INT,
            "segment_id": Kind.STRING,
            "kind": Kind.STRING,
            "object_key": Kind.STRING,
            "detail": Kind.STRING,
            "first_seen": Kind.TIMESTAMP,
            "last_seen": Kind.TIMESTAMP,
            "times_seen": Kind.INT,
            "run_id": Kind.STRING,
        }
    )
    option_columns: ClassVar = {
        "topicId": ("topic_id", Relation.IN),
        "partition": ("partition", Relation.IN),
        "fromTime": ("last_seen", Relation.AT_LEAST),
        "toTime": ("last_seen", Relation.AT_MOST),
    }

    def tasks(
        self, connected: Connected, conditions: Sequence[Condition], shards: int
    ) -> list[Any]:
        topic_ids = allowed_ids(conditions, "topic_id")
        if topic_ids == []:
            return []
        from_us = lower_bound(conditions, "last_seen")
        from_ms = None if from_us is None else max(from_us // 1_000, 0)
        wanted: list[UUID | None] = [*topic_ids] if topic_ids else [None]
        return [AnomalyQuery((), topic_id, from_ms) for topic_id in wanted]

    def batches(
        self, connected: Connected, task: AnomalyQuery, conditions: Sequence[Condition]
    ) -> Iterator[pa.RecordBatch]:
        return self.columns.batches(self._rows(connected, task))

    def _rows(self, connected: Connected, query: AnomalyQuery) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            page = connected.call(connected.rlmm.list_anomalies, query, page_token=token)
            yield from map(_anomaly_row, page.anomalies)
            token = page.next_page_token
            if not token:
                return


def _anomaly_row(seen: SeenAnomaly) -> dict[str, Any]:
    anomaly = seen.anomaly
    return {
        "topic_id": uuid_to_text(anomaly.topic_id),
        "partition": anomaly.partition,
        "segment_id": uuid_to_text(anomaly.segment_id),
        "kind": anomaly.kind.value,
        "object_key": text_or_none(anomaly.object_key),
        "detail": text_or_none(anomaly.detail),
        "first_seen": micros(seen.first_seen_ms),
        "last_seen": micros(seen.last_seen_ms),
        "times_seen": seen.times_seen,
        "run_id": seen.run_id,
    }
