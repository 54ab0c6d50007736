"""Declare the schema's tables. Their rows never leave this service; dataclasses do.

    topics ──< partitions ──< segments ──< segment_epochs      which segment holds an offset
      │             │──────< highest_offsets                   survives the segments
      │             │──────< partition_states                  the tier's lineage, the last report
      │             │──────< polled_logs                       a log that a broker tiers, as polled
      │             │──────< gaps                              what the tier will never have
      │             │──────< events                            the audit trail
      │             └──────< request_outcomes                  answers to repeated request ids
      │──< topic_config_events                                 each version of the settings
      │──< tool_runs                                           the last sweeps and checks, by kind
      └──< holds                                               what keeps data; also of all topics
    anomalies                                                  also of what no row names
    rlm_endpoints                                              where the RLMs are reached
    source_positions                                           how far metadata topics are imported
    deployment                                                 one row: the deployment's id

`partitions` is the lock: every change of a partition locks its row first. A new database gets these
tables as they are; a change of them is a migration too, for the databases that exist.
"""

from collections.abc import Iterable
from enum import Enum
from functools import partial

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER, JSONB
from sqlalchemy.schema import SchemaItem

from services.api.holds import HoldKind
from services.api.operations import MAX_PARTS, AnomalyKind, RunKind
from services.api.partitions import RemotePartitionDeleteState
from services.api.segments import RemoteLogSegmentState
from services.rlmm.database.db import IS_KNOWN
from services.rlmm.database.epoch_index import RANGE_CLASS

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(constraint_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)
EVENT_KINDS = (
    "LEADERSHIP",
    "SEGMENT",
    "PARTITION_DELETE",
    "LINEAGE",
    "LOG_START",
    "GAP",
    "LEADER_EPOCH_RESET",
    "OBJECT_DELETION",
)
BEING_DELETED = "delete_state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED')"
"""Condition for a partition that is being deleted; a literal, so that its partial index is used."""
HAS_TXN_INDEX = "state = 'COPY_SEGMENT_FINISHED' AND NOT txn_idx_empty"
"""Condition for a finished segment that may have a transaction index; a literal too."""

IS_KEPT = "state = 'DELETE_SEGMENT_FINISHED' AND kept_until IS NOT NULL"
"""Condition for a tombstone whose objects are still in the store; a literal too."""

_LIVE = "state <> 'DELETE_SEGMENT_FINISHED'"
_OFFSETS = "0 <= start_offset AND start_offset <= end_offset"
_TIME = DateTime(timezone=True)
_INTS, _BIGINTS = ARRAY(INTEGER), ARRAY(BigInteger)
_NOW, _ZERO = func.clock_timestamp(), text("0")

_key = partial(Column, primary_key=True)
_required = partial(Column, nullable=False)


def _of_partition(name: str, *items: SchemaItem, parent: tuple[str, ...] = ()) -> Table:
    """Declare a table whose rows belong to a partition, or to a row of another such table.

    Args:
        parent: the other table, and what its key has besides the partition.
    """
    table, *more = parent or ("partitions",)
    key = ["topic_id", "partition", *more]
    foreign = ForeignKeyConstraint(key, [f"{table}.{column}" for column in key])
    topic_id, partition = _key("topic_id", Uuid), _key("partition", INTEGER)
    return Table(name, METADATA, topic_id, partition, *items, foreign)


def _by_partition(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Declare a partial index of a partition's rows."""
    expressions = [text(each) if "(" in each else each for each in columns]
    key = ("topic_id", "partition", *expressions)
    return Index(name, *key, unique=unique, postgresql_where=text(where))


def _check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=name)


def _one_of(column: str, values: Iterable[str | Enum]) -> CheckConstraint:
    names = [each.value if isinstance(each, Enum) else each for each in values]
    return _check(column, f"{column} IN ({', '.join(repr(name) for name in names)})")


def _pairs(prefix: str = "") -> CheckConstraint:
    """Declare that each leader epoch has its start offset."""
    return _check(
        f"{prefix}leader_epochs",
        f"cardinality({prefix}leader_epochs) = cardinality({prefix}epoch_start_offsets)",
    )


Table(
    "topics",
    METADATA,
    _key("topic_id", Uuid),
    _required("name", Text),
    _required("config", JSONB, server_default=text("'{}'")),
    _required("config_revision", BigInteger, server_default=_ZERO),
    Column(
        "cluster_id",
        Text,
        comment="Kafka's cluster id, as first announced; null: none was, or an undelete removed it",
    ),
    Column(
        "purged_changes",
        BigInteger,
        comment="revisions of its partitions, all removed and purged; null: they were not",
    ),
    # Until config_revision moves, deletions pass the bound of a day.
    Column("confirmed_revision", BigInteger),
    Column("confirmed_by", Text),
    Column("confirmed_at", _TIME),
    Column("deletions_refused_at", _TIME, comment="when one last passed the bound of a day"),
    Index("name", "name"),
)

# The versions of topics' settings: their audit trail.
Table(
    "topic_config_events",
    METADATA,
    _key("topic_id", ForeignKey("topics.topic_id")),
    _key("revision", BigInteger),
    _required("at", _TIME, server_default=_NOW),
    _required("config", JSONB),
    _required("actor", Text),
    _required("call_id", Text, comment="names the one call, as in the log"),
    _required("reason", Text),
    _required(
        "at_once",
        Boolean,
        server_default=text("false"),
        comment="in force as if ever; others are once they are as old as the delay of settings",
    ),
)

# A partition stays after its deletion, so that its revision never falls, until its whole topic is
# purged. Then the topic's row is a tombstone, and a late message finds the partition removed.
Table(
    "partitions",
    METADATA,
    _key("topic_id", ForeignKey("topics.topic_id")),
    _key("partition", INTEGER),
    _required("revision", BigInteger),
    Column("highest_broker_leader_epoch", INTEGER),
    Column("delete_state", Text),
    Column("marked_at", _TIME, comment="when it was marked for deletion"),
    _required(
        "log_start_offset",
        BigInteger,
        server_default=_ZERO,
        comment="of the tier: segments below it are deleted or being deleted",
    ),
    # Of its segments; bytes are of their logs. Every change of a segment's state moves them.
    _required("finished_segments", BigInteger, server_default=_ZERO),
    _required("finished_bytes", BigInteger, server_default=_ZERO),
    _required("live_segments", BigInteger, server_default=_ZERO),
    _required("live_bytes", BigInteger, server_default=_ZERO),
    _required("saved_bytes", BigInteger, server_default=_ZERO),
    _required(
        "marked_bytes",
        BigInteger,
        server_default=_ZERO,
        comment="of its finished segments that were marked for deletion on marked_on",
    ),
    Column("marked_on", Date, comment="the latest day (UTC) with such a mark"),
    _required("created_at", _TIME, server_default=_NOW),
    _required("changed_at", _TIME, server_default=_NOW),
    _check("partition", "partition >= 0"),
    _check("revision", "revision >= 0"),
    _check("log_start_offset", "log_start_offset >= 0"),
    _one_of("delete_state", RemotePartitionDeleteState),
    _by_partition("being_deleted", where=BEING_DELETED),
    _by_partition("known", where=IS_KNOWN.removeprefix("p.")),
)

# The metadata of segments; in DELETE_SEGMENT_FINISHED, a tombstone. The two arrays are
# RemoteLogSegmentMetadata.segment_leader_epochs, so that reads need no second table.
_of_partition(
    "segments",
    _key("segment_id", Uuid),
    # The constant part.
    _required("start_offset", BigInteger),
    _required("end_offset", BigInteger),
    _required("max_timestamp_ms", BigInteger),
    Column("broker_leader_epoch", INTEGER),
    _required("leader_epochs", _INTS),
    _required("epoch_start_offsets", _BIGINTS),
    _required("segment_size_in_bytes", INTEGER),
    _required("txn_idx_empty", Boolean),
    # The content of the latest event.
    _required("state", Text),
    Column("custom_metadata", LargeBinary),
    _required("broker_id", INTEGER),
    _required("event_timestamp_ms", BigInteger),
    # Has a meaning only in COPY_SEGMENT_STARTED.
    Column("copy_lease_until", _TIME, comment="until then only its broker may abandon the copy"),
    # The partition's revision at the latest event, and at COPY_SEGMENT_FINISHED.
    _required("state_revision", BigInteger),
    Column("finished_revision", BigInteger),
    # The sweep that marked it for deletion.
    Column("plan_id", Text),
    Column("kept_until", _TIME, comment="a broker deleted it; its objects stay until then"),
    _required("created_at", _TIME, server_default=_NOW),
    _required("changed_at", _TIME, server_default=_NOW),
    _one_of("state", RemoteLogSegmentState),
    _check("offsets", _OFFSETS),
    _check(
        "leader_epochs",
        "cardinality(leader_epochs) > 0 "
        "AND cardinality(leader_epochs) = cardinality(epoch_start_offsets)",
    ),
    _by_partition("live", "start_offset", "segment_id", where=_LIVE),
    # For lists that begin at an offset.
    _by_partition("reach", RANGE_CLASS, "start_offset", where=_LIVE),
    Index("tombstones", "changed_at", postgresql_where=text("state = 'DELETE_SEGMENT_FINISHED'")),
    Index("kept", "kept_until", "segment_id", postgresql_where=text(IS_KEPT)),
    # For searches of the next transaction index.
    _by_partition("txn_index", RANGE_CLASS, "start_offset", "segment_id", where=HAS_TXN_INDEX),
)

# The tier's lineage and the leader's latest report. Written often, in place.
_of_partition(
    "partition_states",
    # The tier's lineage, from the log start on.
    _required("leader_epochs", _INTS),
    _required("epoch_start_offsets", _BIGINTS),
    # The latest report.
    _required("reported_at", _TIME, server_default=_NOW),
    _required("broker_id", INTEGER),
    _required("leader_epoch", INTEGER),
    _required("report_number", BigInteger),
    _required("reported_leader_epochs", _INTS),
    _required("reported_epoch_start_offsets", _BIGINTS),
    _required("local_log_start_offset", BigInteger),
    _required("log_end_offset", BigInteger),
    _required("high_watermark", BigInteger),
    _required("last_stable_offset", BigInteger),
    _required("only_local_bytes", BigInteger),
    _required("copied_through_offset", BigInteger),
    _required("lag_bytes", BigInteger),
    _required("local_trim_offset", BigInteger),
    _pairs(),
    _pairs("reported_"),
)

# The log of a partition that a broker tiers by itself, as an RLM polled it.
_of_partition(
    "polled_logs",
    _required("polled_at", _TIME, server_default=_NOW),
    _required("broker_id", INTEGER),
    _required("leader_epoch", INTEGER),
    _required("leader_epochs", _INTS),
    _required("epoch_start_offsets", _BIGINTS),
    _required("log_start_offset", BigInteger),
    _required("high_watermark", BigInteger),
    _pairs(),
)

# The offsets that a live segment has in one of its leader epochs. `referenced` and `overlapped` are
# true only for segments in COPY_SEGMENT_FINISHED, and each of these has at least one: a displaced
# one is flagged as overlapped.
_of_partition(
    "segment_epochs",
    _key("segment_id", Uuid),
    _key("leader_epoch", INTEGER),
    _required(
        "segment_start_offset", BigInteger, comment="of the whole segment: lists are in its order"
    ),
    _required("start_offset", BigInteger, comment="first offset within the epoch"),
    _required("end_offset", BigInteger, comment="last offset within the epoch, inclusive"),
    _required("referenced", Boolean, comment="in Kafka's map from start offset to segment"),
    _required(
        "overlapped",
        Boolean,
        comment="when it or a neighbour finished, both had offsets in common",
    ),
    # An epoch without offsets ends one before its start.
    _check("offsets", "0 <= start_offset AND start_offset - 1 <= end_offset"),
    Index("listed", "topic_id", "partition", "leader_epoch", "segment_start_offset", "segment_id"),
    _by_partition("referenced", "leader_epoch", "start_offset", where="referenced", unique=True),
    # For look-ups where Kafka's map has no answer.
    _by_partition(
        "overlapped_reach", "leader_epoch", RANGE_CLASS, "start_offset", where="overlapped"
    ),
    parent=("segments", "segment_id"),
)

# The highest offset finished in an epoch; outlives the segments, but for a rebuild.
_of_partition(
    "highest_offsets",
    _key("leader_epoch", INTEGER),
    _required("highest_offset", BigInteger, comment="last offset ever finished, inclusive"),
    # -1 while only segments without offsets in the epoch have finished; counts as 0.
    _required(
        "longest_reach",
        BigInteger,
        comment="largest end minus start of one segment: no search goes further back than that",
    ),
)

# Offsets that the tier will never have. The ranges of a partition neither overlap nor touch, and
# are at most MAX_GAPS.
_of_partition(
    "gaps",
    _key("start_offset", BigInteger),
    _required("end_offset", BigInteger, comment="inclusive"),
    _required("kind", Text),
    Column("leader_epoch", INTEGER, comment="under which it was found; null: none was known"),
    _required("revision", BigInteger, comment="the partition's that recorded it"),
    _check("offsets", _OFFSETS),
)

# The audit trail: one row for each revision of a partition, without gaps.
_of_partition(
    "events",
    _key("revision", BigInteger),
    _required("at", _TIME, server_default=_NOW),
    # The change.
    _required("kind", Text),
    Column("from_state", Text),
    Column("to_state", Text),
    Column("segment_id", Uuid),
    Column(
        "key",
        Text,
        comment="topicId:partition:endOffset:brokerLeaderEpoch of the segment, -1: no epoch known",
    ),
    # The actor and the reason.
    _required("actor", Text),
    _required("call_id", Text, comment="names the one call, as in the log"),
    Column("request_id", Text, comment="chosen by the caller"),
    _required("reason", Text),
    Column("rule_detail", Text),
    Column("plan_id", Text),
    _required("broker_id", INTEGER),
    Column("broker_leader_epoch", INTEGER),
    # The number of further calls that requested the same change.
    _required("repeat_count", BigInteger, server_default=_ZERO),
    _required(
        "transaction_id",
        BigInteger,
        server_default=text("pg_current_xact_id()::text::bigint"),
        comment="of the transaction that wrote the event",
    ),
    _one_of("kind", EVENT_KINDS),
    _check("revision", "revision > 0"),
    _by_partition("partition_delete", "to_state", where="kind = 'PARTITION_DELETE'"),
    # For watches.
    Index("transaction", "transaction_id"),
)

# The outcome of a request id; valid for a day.
_of_partition(
    "request_outcomes",
    _key("request_id", Text),
    _required("body_digest", LargeBinary),
    _required("revision", BigInteger),
    _required("at", _TIME, server_default=_NOW),
    Index("at", "at"),
)

# Differences between metadata and store. No foreign keys: an orphan's topic may be unknown.
Table(
    "anomalies",
    METADATA,
    _key("anomaly_id", Uuid, comment="digest of all that it is known by"),
    # The identity of the anomaly.
    _required("kind", Text),
    _required("topic_id", Uuid),
    _required("partition", INTEGER),
    _required("segment_id", Uuid),
    _required("object_key", Text, comment="empty: of the segment as a whole"),
    # The findings of the runs that saw the anomaly.
    _required("detail", Text),
    _required("first_seen", _TIME, server_default=_NOW),
    _required("last_seen", _TIME, server_default=_NOW),
    _required("times_seen", BigInteger, server_default=text("1")),
    _required("run_ids", ARRAY(Text), comment="the runs that saw it last, the latest one last"),
    _one_of("kind", AnomalyKind),
    _check("partition", "partition >= 0"),
    Index("listed", "first_seen", "anomaly_id"),
    Index("listed_by_topic", "topic_id", "first_seen", "anomaly_id"),
    Index("last_seen", "last_seen"),
)

# What the last run of a kind did in one part of its scope: the topic's id, or a digest of the run's
# topics if the counts are of all of them.
Table(
    "tool_runs",
    METADATA,
    _key("scope", Uuid),
    _key("kind", Text),
    _key("parts", INTEGER),
    _key("part", INTEGER),
    Column("topic_id", ForeignKey("topics.topic_id")),
    _required("topics", ARRAY(Text), comment="of the run; empty: all"),
    _required("ended_at", _TIME, server_default=_NOW),
    _required("run_id", Text),
    _required("outcome", Text),
    _required("duration_ms", BigInteger),
    _required("segments", BigInteger),
    _required("done_segments", BigInteger),
    _required("done_bytes", BigInteger),
    _required("failed_segments", BigInteger),
    _one_of("kind", RunKind),
    _check("part", f"part BETWEEN 1 AND parts AND parts <= {MAX_PARTS}"),
)

# What keeps data from deletion. A hold is known by its name and scope, of which its id is a digest.
Table(
    "holds",
    METADATA,
    _key("hold_id", Uuid),
    _required("name", Text),
    _required("kind", Text),
    Column("topic_id", ForeignKey("topics.topic_id"), comment="null: all topics"),
    Column("partition", INTEGER, comment="null: all partitions"),
    _required("first_offset", BigInteger),
    Column("last_offset", BigInteger, comment="inclusive; null: no end"),
    _required("reason", Text),
    _required("actor", Text, comment="who set it last"),
    _required("set_at", _TIME, comment="when it was first set"),
    Column("until", _TIME, comment="null: until it is ended"),
    _one_of("kind", HoldKind),
    _check("partition", "partition IS NULL OR topic_id IS NOT NULL"),
    _check("offsets", "0 <= first_offset AND (last_offset IS NULL OR first_offset <= last_offset)"),
    Index("scope", "topic_id", "partition"),
    Index("until", "until"),
)

# Where the RLMs of clusters are reached; a row for each log directory of a broker. Written often.
Table(
    "rlm_endpoints",
    METADATA,
    _key("cluster_id", Text),
    _key("directory_id", Text),
    _required("broker_id", INTEGER),
    _required("address", Text, comment="of gRPC"),
    Column("listener", Text, comment="for consumers of Kafka; null: none"),
    _required("instance_id", Uuid, comment="of the process"),
    _required("lease_until", _TIME, comment="the process lives until then at least"),
    _check("broker_id", "broker_id >= 0"),
)

# How far each partition of another cluster's metadata topic has been imported.
Table(
    "source_positions",
    METADATA,
    _key("cluster_id", Text),
    _key("partition", INTEGER, comment="of the metadata topic"),
    _required("topic_id", Uuid, comment="of the metadata topic"),
    _required("next_offset", BigInteger),
    _required("imported_at", _TIME, server_default=_NOW),
    _check("next_offset", "partition >= 0 AND next_offset >= 0"),
)

# The one row with the deployment's id, which is also in the objects' marker.
Table(
    "deployment",
    METADATA,
    _key("is_only_row", Boolean, server_default=text("true")),
    _required("deployment_id", Uuid),
    _required("made_at", _TIME, server_default=_NOW),
    _check("only_row", "is_only_row"),
)
