"""Define the schema's tables. Rows never leave this service; dataclasses do.

    topics ──< partitions ──< segments ──< segment_epochs      which segment holds an offset
      │             │──────< highest_offsets                   survives the segments
      │             │──────< partition_states                  the tier's lineage, the last report
      │             │──────< polled_logs                       a log that a broker tiers, as polled
      │             │──────< gaps                              what the tier will never have
      │             │──────< events                            the audit trail
      │             └──────< request_outcomes                  answers to repeated request ids
      │──< topic_config_events                                 each version of the settings
      └──< verifications                                       what checks read of it, and when
    anomalies                                                  also of what no row names
    sweep_runs                                                 the last sweep of each kind
    deployment                                                 one row: the deployment's id

`partitions` is the lock: every change of a partition locks its row first. A test compares this
schema with the one that migrations/ builds.
"""

from datetime import datetime
from typing import ClassVar
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from services.api.operations import MAX_PARTS, AnomalyKind, SweepKind, VerificationKind
from services.api.partitions import RemotePartitionDeleteState
from services.api.segments import RemoteLogSegmentState
from services.rlmm.database.epoch_index import RANGE_CLASS

NAMING_CONVENTION = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(referred_table_name)s",
    "ix": "ix_%(table_name)s_%(constraint_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}

NOW = func.clock_timestamp()

SEGMENT_STATES = [state.value for state in RemoteLogSegmentState]
DELETE_STATES = [state.value for state in RemotePartitionDeleteState]
ANOMALY_KINDS = [kind.value for kind in AnomalyKind]
VERIFICATION_KINDS = [kind.value for kind in VerificationKind]
SWEEP_KINDS = [kind.value for kind in SweepKind]
EVENT_KINDS = [
    "LEADERSHIP",
    "SEGMENT",
    "PARTITION_DELETE",
    "LINEAGE",
    "LOG_START",
    "GAP",
    "LEADER_EPOCH_RESET",
    "OBJECT_DELETION",
]
BEING_DELETED = text("delete_state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED')")
"""Condition for a partition that is being deleted; a literal, like LIVE."""
LIVE = text("state <> 'DELETE_SEGMENT_FINISHED'")
"""Condition for a segment that is not deleted; a literal, so that its partial index is used."""
TOMBSTONE = text("state = 'DELETE_SEGMENT_FINISHED'")
HAS_TXN_INDEX = "state = 'COPY_SEGMENT_FINISHED' AND NOT txn_idx_empty"
"""Condition for a finished segment that may have a transaction index; a literal, like LIVE."""


class Base(DeclarativeBase):
    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map: ClassVar = {
        str: Text(),
        int: BigInteger(),
        datetime: DateTime(timezone=True),
    }


def _one_of(column: str, names: list[str]) -> str:
    return f"{column} IN ({', '.join(repr(name) for name in names)})"


class TopicRow(Base):
    __tablename__ = "topics"
    __table_args__ = (Index("name", "name"),)

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    config: Mapped[dict[str, str]] = mapped_column(JSONB, server_default=text("'{}'"))
    config_revision: Mapped[int] = mapped_column(server_default=text("0"))
    cluster_id: Mapped[str | None] = mapped_column(
        comment="Kafka's cluster id, as first announced; null: none was, or an undelete removed it"
    )


class TopicConfigEventRow(Base):
    """A version of a topic's settings: their audit trail."""

    __tablename__ = "topic_config_events"

    topic_id: Mapped[UUID] = mapped_column(ForeignKey("topics.topic_id"), primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=NOW)
    config: Mapped[dict[str, str]] = mapped_column(JSONB)
    actor: Mapped[str]
    call_id: Mapped[str] = mapped_column(comment="names the one call, as in the log")
    reason: Mapped[str]


class PartitionRow(Base):
    """A partition, also after its deletion: its revision never falls."""

    __tablename__ = "partitions"
    __table_args__ = (
        CheckConstraint("partition >= 0", name="partition"),
        CheckConstraint("revision >= 0", name="revision"),
        CheckConstraint(_one_of("delete_state", DELETE_STATES), name="delete_state"),
        CheckConstraint("log_start_offset >= 0", name="log_start_offset"),
        Index("being_deleted", "topic_id", "partition", postgresql_where=BEING_DELETED),
    )

    topic_id: Mapped[UUID] = mapped_column(ForeignKey("topics.topic_id"), primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    revision: Mapped[int]
    highest_broker_leader_epoch: Mapped[int | None] = mapped_column(INTEGER)
    delete_state: Mapped[str | None]
    marked_at: Mapped[datetime | None] = mapped_column(comment="when it was marked for deletion")
    log_start_offset: Mapped[int] = mapped_column(
        server_default=text("0"),
        comment="of the tier: segments below it are deleted or being deleted",
    )
    # Of its segments; bytes are of their logs. Every change of a segment's state moves them.
    finished_segments: Mapped[int] = mapped_column(server_default=text("0"))
    finished_bytes: Mapped[int] = mapped_column(server_default=text("0"))
    live_segments: Mapped[int] = mapped_column(server_default=text("0"))
    live_bytes: Mapped[int] = mapped_column(server_default=text("0"))
    export_positions: Mapped[dict[str, dict[str, int]] | None] = mapped_column(
        JSONB(none_as_null=True),
        comment="next_offset and lease_until_ms of each export, by its name",
    )
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    changed_at: Mapped[datetime] = mapped_column(server_default=NOW)


class SegmentRow(Base):
    """A segment with all its metadata; in DELETE_SEGMENT_FINISHED, a tombstone.

    The two arrays are RemoteLogSegmentMetadata.segment_leader_epochs, so that reads need no second
    table.
    """

    __tablename__ = "segments"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition"], ["partitions.topic_id", "partitions.partition"]
        ),
        CheckConstraint(_one_of("state", SEGMENT_STATES), name="state"),
        CheckConstraint("0 <= start_offset AND start_offset <= end_offset", name="offsets"),
        CheckConstraint(
            "cardinality(leader_epochs) > 0 "
            "AND cardinality(leader_epochs) = cardinality(epoch_start_offsets)",
            name="leader_epochs",
        ),
        Index(
            "live",
            "topic_id",
            "partition",
            "start_offset",
            "segment_id",
            postgresql_where=LIVE,
        ),
        # For lists that begin at an offset.
        Index(
            "reach",
            "topic_id",
            "partition",
            text(RANGE_CLASS),
            "start_offset",
            postgresql_where=LIVE,
        ),
        Index("tombstones", "changed_at", postgresql_where=TOMBSTONE),
        # For searches of the next transaction index.
        Index(
            "txn_index",
            "topic_id",
            "partition",
            text(RANGE_CLASS),
            "start_offset",
            "segment_id",
            postgresql_where=text(HAS_TXN_INDEX),
        ),
    )

    # The identity of the segment.
    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    segment_id: Mapped[UUID] = mapped_column(primary_key=True)
    # The constant part.
    start_offset: Mapped[int]
    end_offset: Mapped[int]
    max_timestamp_ms: Mapped[int]
    broker_leader_epoch: Mapped[int | None] = mapped_column(INTEGER)
    leader_epochs: Mapped[list[int]] = mapped_column(ARRAY(INTEGER))
    epoch_start_offsets: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    segment_size_in_bytes: Mapped[int] = mapped_column(INTEGER)
    txn_idx_empty: Mapped[bool]
    # The content of the latest event.
    state: Mapped[str]
    custom_metadata: Mapped[bytes | None]
    broker_id: Mapped[int] = mapped_column(INTEGER)
    event_timestamp_ms: Mapped[int]
    # Has a meaning only in COPY_SEGMENT_STARTED.
    copy_lease_until: Mapped[datetime | None] = mapped_column(
        comment="until then only its broker may abandon the copy"
    )
    # The partition's revision at the latest event, and at COPY_SEGMENT_FINISHED.
    state_revision: Mapped[int]
    finished_revision: Mapped[int | None]
    # The sweep that marked it for deletion.
    plan_id: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    changed_at: Mapped[datetime] = mapped_column(server_default=NOW)


class PartitionStateRow(Base):
    """The tier's lineage and the leader's latest report. Written often, in place."""

    __tablename__ = "partition_states"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition"], ["partitions.topic_id", "partitions.partition"]
        ),
        CheckConstraint(
            "cardinality(leader_epochs) = cardinality(epoch_start_offsets)", name="leader_epochs"
        ),
        CheckConstraint(
            "cardinality(reported_leader_epochs) = cardinality(reported_epoch_start_offsets)",
            name="reported_leader_epochs",
        ),
    )

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    # The tier's lineage, from the log start on.
    leader_epochs: Mapped[list[int]] = mapped_column(ARRAY(INTEGER))
    epoch_start_offsets: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    # The latest report.
    reported_at: Mapped[datetime] = mapped_column(server_default=NOW)
    broker_id: Mapped[int] = mapped_column(INTEGER)
    leader_epoch: Mapped[int] = mapped_column(INTEGER)
    report_number: Mapped[int]
    reported_leader_epochs: Mapped[list[int]] = mapped_column(ARRAY(INTEGER))
    reported_epoch_start_offsets: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    local_log_start_offset: Mapped[int]
    log_end_offset: Mapped[int]
    high_watermark: Mapped[int]
    last_stable_offset: Mapped[int]
    only_local_bytes: Mapped[int]
    copied_through_offset: Mapped[int]


class PolledLogRow(Base):
    """The log of a partition that a broker tiers by itself, as an RLM polled it."""

    __tablename__ = "polled_logs"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition"], ["partitions.topic_id", "partitions.partition"]
        ),
        CheckConstraint(
            "cardinality(leader_epochs) = cardinality(epoch_start_offsets)", name="leader_epochs"
        ),
    )

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    polled_at: Mapped[datetime] = mapped_column(server_default=NOW)
    broker_id: Mapped[int] = mapped_column(INTEGER)
    leader_epoch: Mapped[int] = mapped_column(INTEGER)
    leader_epochs: Mapped[list[int]] = mapped_column(ARRAY(INTEGER))
    epoch_start_offsets: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    log_start_offset: Mapped[int]
    high_watermark: Mapped[int]


class SegmentEpochRow(Base):
    """The offsets that a live segment has in one of its leader epochs.

    `referenced` and `overlapped` are true only for segments in COPY_SEGMENT_FINISHED, and each of
    these has at least one: a displaced one is flagged as overlapped.
    """

    __tablename__ = "segment_epochs"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition", "segment_id"],
            ["segments.topic_id", "segments.partition", "segments.segment_id"],
        ),
        # An epoch without offsets ends one before its start.
        CheckConstraint("0 <= start_offset AND start_offset - 1 <= end_offset", name="offsets"),
        Index(
            "listed",
            "topic_id",
            "partition",
            "leader_epoch",
            "segment_start_offset",
            "segment_id",
        ),
        Index(
            "referenced",
            "topic_id",
            "partition",
            "leader_epoch",
            "start_offset",
            unique=True,
            postgresql_where=text("referenced"),
        ),
        # For look-ups where Kafka's map has no answer.
        Index(
            "overlapped_reach",
            "topic_id",
            "partition",
            "leader_epoch",
            text(RANGE_CLASS),
            "start_offset",
            postgresql_where=text("overlapped"),
        ),
    )

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    segment_id: Mapped[UUID] = mapped_column(primary_key=True)
    leader_epoch: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    segment_start_offset: Mapped[int] = mapped_column(
        comment="of the whole segment: lists are in its order"
    )
    start_offset: Mapped[int] = mapped_column(comment="first offset within the epoch")
    end_offset: Mapped[int] = mapped_column(comment="last offset within the epoch, inclusive")
    referenced: Mapped[bool] = mapped_column(comment="in Kafka's map from start offset to segment")
    overlapped: Mapped[bool] = mapped_column(
        comment="when it or a neighbour finished, both had offsets in common"
    )


class HighestOffsetRow(Base):
    """The highest offset finished in an epoch; outlives the segments, but for a rebuild."""

    __tablename__ = "highest_offsets"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition"], ["partitions.topic_id", "partitions.partition"]
        ),
    )

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    leader_epoch: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    highest_offset: Mapped[int] = mapped_column(comment="last offset ever finished, inclusive")
    longest_reach: Mapped[int] = mapped_column(
        comment="largest end minus start of one segment: no search goes further back than that"
    )  # -1 while only segments without offsets in the epoch have finished; counts as 0.


class GapRow(Base):
    """Offsets that the tier will never have.

    The ranges of a partition neither overlap nor touch, and are at most MAX_GAPS.
    """

    __tablename__ = "gaps"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition"], ["partitions.topic_id", "partitions.partition"]
        ),
        CheckConstraint("0 <= start_offset AND start_offset <= end_offset", name="offsets"),
    )

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    start_offset: Mapped[int] = mapped_column(primary_key=True)
    end_offset: Mapped[int] = mapped_column(comment="inclusive")
    kind: Mapped[str]
    leader_epoch: Mapped[int | None] = mapped_column(
        INTEGER, comment="under which it was found; null: none was known"
    )
    revision: Mapped[int] = mapped_column(comment="the partition's that recorded it")


class EventRow(Base):
    """The audit trail: one row for each revision of a partition, without gaps."""

    __tablename__ = "events"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition"], ["partitions.topic_id", "partitions.partition"]
        ),
        CheckConstraint(_one_of("kind", EVENT_KINDS), name="kind"),
        CheckConstraint("revision > 0", name="revision"),
        Index(
            "partition_delete",
            "topic_id",
            "partition",
            "to_state",
            postgresql_where=text("kind = 'PARTITION_DELETE'"),
        ),
        # For watches.
        Index("transaction", "transaction_id"),
    )

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=NOW)
    # The change.
    kind: Mapped[str]
    from_state: Mapped[str | None]
    to_state: Mapped[str | None]
    segment_id: Mapped[UUID | None]
    key: Mapped[str | None] = mapped_column(
        comment="topicId:partition:endOffset:brokerLeaderEpoch of the segment, -1: no epoch known"
    )
    # The actor and the reason.
    actor: Mapped[str]
    call_id: Mapped[str] = mapped_column(comment="names the one call, as in the log")
    request_id: Mapped[str | None] = mapped_column(comment="chosen by the caller")
    reason: Mapped[str]
    rule_detail: Mapped[str | None]
    plan_id: Mapped[str | None]
    broker_id: Mapped[int] = mapped_column(INTEGER)
    broker_leader_epoch: Mapped[int | None] = mapped_column(INTEGER)
    # The number of further calls that requested the same change.
    repeat_count: Mapped[int] = mapped_column(server_default=text("0"))
    transaction_id: Mapped[int] = mapped_column(
        server_default=text("pg_current_xact_id()::text::bigint"),
        comment="of the transaction that wrote the event",
    )


class RequestOutcomeRow(Base):
    """The outcome of a request id; valid for a day."""

    __tablename__ = "request_outcomes"
    __table_args__ = (
        ForeignKeyConstraint(
            ["topic_id", "partition"], ["partitions.topic_id", "partitions.partition"]
        ),
        Index("at", "at"),
    )

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    request_id: Mapped[str] = mapped_column(primary_key=True)
    body_digest: Mapped[bytes]
    revision: Mapped[int]
    at: Mapped[datetime] = mapped_column(server_default=NOW)


class AnomalyRow(Base):
    """A difference between metadata and store. No foreign keys: an orphan's topic may be
    unknown.
    """

    __tablename__ = "anomalies"
    __table_args__ = (
        CheckConstraint(_one_of("kind", ANOMALY_KINDS), name="kind"),
        CheckConstraint("partition >= 0", name="partition"),
        Index("listed", "first_seen", "anomaly_id"),
        Index("listed_by_topic", "topic_id", "first_seen", "anomaly_id"),
        Index("last_seen", "last_seen"),
    )

    anomaly_id: Mapped[UUID] = mapped_column(
        primary_key=True, comment="digest of all that it is known by"
    )
    # The identity of the anomaly.
    kind: Mapped[str]
    topic_id: Mapped[UUID]
    partition: Mapped[int] = mapped_column(INTEGER)
    segment_id: Mapped[UUID]
    object_key: Mapped[str] = mapped_column(comment="empty: of the segment as a whole")
    # The findings of the runs that saw the anomaly.
    detail: Mapped[str]
    first_seen: Mapped[datetime] = mapped_column(server_default=NOW)
    last_seen: Mapped[datetime] = mapped_column(server_default=NOW)
    times_seen: Mapped[int] = mapped_column(server_default=text("1"))
    run_ids: Mapped[list[str]] = mapped_column(
        ARRAY(Text), comment="the runs that saw it last, the latest one last"
    )


class VerificationRow(Base):
    """What a run verified of one part of a topic; a later run of the part replaces it."""

    __tablename__ = "verifications"
    __table_args__ = (
        CheckConstraint(_one_of("kind", VERIFICATION_KINDS), name="kind"),
        CheckConstraint(f"part BETWEEN 1 AND parts AND parts <= {MAX_PARTS}", name="part"),
    )

    topic_id: Mapped[UUID] = mapped_column(ForeignKey("topics.topic_id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    parts: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    part: Mapped[int] = mapped_column(INTEGER, primary_key=True)
    ended_at: Mapped[datetime] = mapped_column(server_default=NOW)
    run_id: Mapped[str]
    segments: Mapped[int]
    verified_segments: Mapped[int]
    verified_bytes: Mapped[int]
    failed_segments: Mapped[int]


class SweepRunRow(Base):
    """The last sweep of a kind and scope: a digest of its topics."""

    __tablename__ = "sweep_runs"
    __table_args__ = (CheckConstraint(_one_of("kind", SWEEP_KINDS), name="kind"),)

    kind: Mapped[str] = mapped_column(primary_key=True)
    scope: Mapped[UUID] = mapped_column(primary_key=True)
    topics: Mapped[list[str]] = mapped_column(ARRAY(Text))
    run_id: Mapped[str]
    outcome: Mapped[str]
    ended_at: Mapped[datetime] = mapped_column(server_default=NOW)
    duration_ms: Mapped[int]
    planned_segments: Mapped[int]
    deleted_segments: Mapped[int]
    deleted_bytes: Mapped[int]
    failed_segments: Mapped[int]


class DeploymentRow(Base):
    """The one row with the deployment's id, which is also in the objects' marker.

    Deletions are frozen while frozen_at is set.
    """

    __tablename__ = "deployment"
    __table_args__ = (CheckConstraint("is_only_row", name="only_row"),)

    is_only_row: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    deployment_id: Mapped[UUID]
    made_at: Mapped[datetime] = mapped_column(server_default=NOW)
    frozen_at: Mapped[datetime | None]
    frozen_by: Mapped[str | None]
    frozen_reason: Mapped[str | None]
