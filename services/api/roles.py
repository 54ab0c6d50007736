"""Define which roles may call which RPC, and which topics a call needs to be granted.

This table is the whole of it: docs/run/security.md, the policy check and the servers read it.
Every RPC of the contracts has one entry, which a test holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PACKAGE = "tieredstorage.v1"


class Role(StrEnum):
    """What an identity is for. A policy grants roles; nothing else may be granted."""

    SHIPPER = "shipper"
    READER = "reader"
    DELETER = "deleter"
    SWEEPER = "sweeper"
    AUDITOR = "auditor"
    ADMIN = "admin"
    EXPORTER = "exporter"
    KEEPER = "keeper"
    OVERRIDER = "overrider"
    COUNSEL = "counsel"


MEANING = {
    Role.SHIPPER: "copies segments, and reports leaders and partition states: RLM, a broker",
    Role.READER: "reads records, indexes and the metadata of segments: RLM, a broker, consumers",
    Role.DELETER: "expires and deletes segments and partitions: RLM or a broker that retains",
    Role.SWEEPER: "scans, marks and deletes in bulk, reports anomalies: sweeps and reconciliation",
    Role.AUDITOR: "reads events, anomalies, settings and states, but no records",
    Role.ADMIN: "changes settings, holds and marks topics, undeletes, resets, repairs, imports",
    Role.EXPORTER: "keeps offsets from retention until they are exported, besides reader",
    Role.KEEPER: "keeps settings and log starts in the object store: `sediment db maintain`",
    Role.OVERRIDER: "lets deletions begin: `sediment topics set --now`, `deletions confirm`",
    Role.COUNSEL: "sets legal holds, and alone ends them",
}


class Topics(StrEnum):
    """Which topics a grant must cover for a call.

    NAMED: every topic that the request names. RLMM and RLM refuse a name that is not the stored one
    of the topic id.
    FILTER: the topics that the request's filter names; without one, all topics.
    STORED: the topic whose id the request has, by its stored name.
    ALL: all topics; a grant with the topics ["*"].
    NONE: topics do not matter.
    """

    NAMED = "named"
    FILTER = "filter"
    STORED = "stored"
    ALL = "all"
    NONE = "none"


Roles = frozenset[Role]


@dataclass(frozen=True, slots=True)
class ValueRule:
    """Narrows the roles of an RPC by a value of its request.

    Attributes:
        path: of the field, with dots; fields on the way may be repeated.
        roles: by the name of the enum's value, without its prefix, or by "with FIELD" and "without
            FIELD" of a bool. A value that is not here is malformed for the RPC, which refuses it.
    """

    path: str
    roles: Mapping[str, Roles]


@dataclass(frozen=True, slots=True)
class Rule:
    """The roles of which a caller needs one, for the topics of the call.

    Attributes:
        filter: the path of FILTER's field, with dots.
        by_value: narrows the roles for some requests.
    """

    roles: Roles
    topics: Topics
    filter: str = ""
    by_value: ValueRule | None = field(default=None)


def _roles(*roles: Role) -> Roles:
    return frozenset(roles)


_S, _R, _D, _W, _A, _M, _E, _K, _O, _C = Role
ANY_ROLE = frozenset(Role)

# A segment that has finished is deleted by these changes; a copy is completed by the other.
_SEGMENT_STATES = {
    "COPY_SEGMENT_FINISHED": _roles(_S),
    "DELETE_SEGMENT_STARTED": _roles(_D, _W),
    "DELETE_SEGMENT_FINISHED": _roles(_D, _W),
}
_DELETE_STATES = {
    "DELETE_PARTITION_MARKED": _roles(_D, _M),
    "DELETE_PARTITION_STARTED": _roles(_D, _W),
    "DELETE_PARTITION_FINISHED": _roles(_D, _W),
}
# The others make RLM delete what is in the tier, with RLM's own rights.
_STOP_REASONS = {
    "REASSIGNED": _roles(_S),
    "TIERING_DISABLED": _roles(_D),
    "TOPIC_DELETED": _roles(_D),
}
_SET_HOLDS = {
    "OPERATOR": _roles(_M),
    "LEGAL": _roles(_M, _C),
    # A client that may keep data for ever, by renewals, is no mere reader.
    "EXPORT": _roles(_E, _M),
    "REBUILD": _roles(_M),
}
_ENDED_HOLDS = {**_SET_HOLDS, "LEGAL": _roles(_C)}
# A shipper reads the lineage of the tier when its own log does not reach back to it.
_INDEX_TYPES = {
    "OFFSET": _roles(_R),
    "TIMESTAMP": _roles(_R),
    "PRODUCER_SNAPSHOT": _roles(_R),
    "TRANSACTION": _roles(_R),
    "LEADER_EPOCH": _roles(_R, _S),
}


# Objects of a committed copy are what a reader reads.
_COMMITTED_COPIES = {
    "without committed_copies": _roles(_W, _D, _M),
    "with committed_copies": _roles(_D, _M),
}


# A finished segment is repaired by the role that may let it be read from other bytes.
_REPLACES = {"without replaces": _roles(_S), "with replaces": _roles(_M)}
# What changed settings delete waits for a while, in which it can be set back.
_PUTS = {"without now": _roles(_M), "with now": _roles(_O)}


def _of_rsm(*roles: Role, by_value: ValueRule | None = None) -> Rule:
    # Objects have no topic names, so a name in a request to RSM would prove nothing.
    return Rule(_roles(*roles), Topics.NONE, by_value=by_value)


def _of_the_store(*roles: Role) -> Rule:
    return Rule(_roles(*roles), Topics.ALL)


def _of_partitions(*roles: Role, by_value: ValueRule | None = None) -> Rule:
    return Rule(_roles(*roles), Topics.NAMED, by_value=by_value)


def _of_holds(kinds: Mapping[str, Roles]) -> Rule:
    roles = frozenset[Role]().union(*kinds.values())
    by_kind = ValueRule("hold.kind", kinds)
    return Rule(roles, Topics.FILTER, filter="hold.topic", by_value=by_kind)


_RSM: dict[str, Rule] = {
    "CopyLogSegmentData": _of_rsm(_S, _M, by_value=ValueRule("header.replaces", _REPLACES)),
    "FetchLogSegment": _of_rsm(_R),
    "OpenLogSegment": _of_rsm(_R),
    "FetchIndex": _of_rsm(_R, _S, by_value=ValueRule("index_type", _INDEX_TYPES)),
    # Without a row RSM cannot distinguish a failed copy from a finished one: a shipper alone
    # leaves the remains of its failed copies to a deleter or a sweeper.
    "DeleteLogSegmentData": _of_rsm(_D),
    "DeleteLogSegmentDataBatch": _of_rsm(_D, _W),
    # A client that deletes a partition's objects may see whether any is left.
    "FindPartitionObject": _of_rsm(_D, _W),
    "ListSegmentObjects": _of_the_store(_W, _A),
    "ListMultipartUploads": _of_the_store(_W, _A),
    "ReadSegmentManifest": _of_the_store(_W, _A),
    "DeleteSegmentObjects": Rule(
        _roles(_W, _D, _M), Topics.ALL, by_value=ValueRule("committed_copies", _COMMITTED_COPIES)
    ),
    "AbortMultipartUploads": _of_the_store(_W),
    "RewrapKeys": _of_the_store(_M),
    "PutDeploymentState": _of_the_store(_K, _M),
    "GetDeploymentState": _of_the_store(_K, _A, _M),
}

_RLMM: dict[str, Rule] = {
    "AddRemoteLogSegmentMetadata": _of_partitions(_S),
    "AddRemoteLogSegmentMetadataBatch": _of_partitions(_S),
    "RenewCopyLeases": _of_partitions(_S),
    "UpdateRemoteLogSegmentMetadata": _of_partitions(
        _S, _D, _W, by_value=ValueRule("update.state", _SEGMENT_STATES)
    ),
    "UpdateRemoteLogSegmentMetadataBatch": _of_partitions(
        _S, _D, _W, by_value=ValueRule("updates.update.state", _SEGMENT_STATES)
    ),
    "GetRemoteLogSegmentMetadata": _of_partitions(_R),
    "GetRemoteLogSegmentMetadataBatch": _of_partitions(_R),
    "GetRemoteLogSegmentMetadataById": _of_partitions(_R, _A),
    "GetEarliestLogOffset": _of_partitions(_R, _S, _A),
    "GetHighestOffsetForEpoch": _of_partitions(_R, _S),
    "PutRemotePartitionDeleteMetadata": _of_partitions(
        _D, _W, _M, by_value=ValueRule("metadata.state", _DELETE_STATES)
    ),
    "ListRemoteLogSegments": _of_partitions(_R, _S, _D, _W, _A),
    "ListKeptSegments": Rule(_roles(_R, _S, _D, _W, _A), Topics.FILTER, filter="topic"),
    "GetRemoteLogSize": _of_partitions(_R, _D),
    "GetNextSegmentWithTxnIndex": _of_partitions(_R),
    # Says only whether the database is there.
    "IsReady": Rule(ANY_ROLE, Topics.NONE),
    "OnPartitionLeadershipChanges": _of_partitions(_S),
    "OnStopPartitions": _of_partitions(_S),
    # Of a process, not of topics.
    "AnnounceEndpoint": Rule(_roles(_S), Topics.NONE),
    "ListPartitions": Rule(ANY_ROLE, Topics.FILTER, filter="topic"),
    "GetPartitionRevisions": _of_partitions(_R, _S, _D),
    "WatchPartitions": _of_partitions(_R, _S, _D),
    "GetTopicConfig": Rule(ANY_ROLE, Topics.STORED),
    "PutTopicConfig": Rule(_roles(_M, _O), Topics.STORED, by_value=ValueRule("now", _PUTS)),
    "ConfirmDeletions": Rule(_roles(_O), Topics.STORED),
    "ReportPartitionState": _of_partitions(_S),
    "GetPartitionState": _of_partitions(*ANY_ROLE),
    "RaiseLogStartOffset": _of_partitions(_D, _W),
    "ScanRemoteLogSegments": Rule(_roles(_W, _A), Topics.FILTER, filter="topic"),
    "BinRemoteLogSegments": _of_partitions(_R, _S, _D, _W, _A),
    "RecordGap": _of_partitions(_S),
    "SetHold": _of_holds(_SET_HOLDS),
    "EndHold": _of_holds(_ENDED_HOLDS),
    "ListHolds": Rule(ANY_ROLE, Topics.FILTER, filter="topic"),
    "ListEvents": _of_partitions(_A),
    # An anomaly names its topic by an id that RLMM need not know.
    "ReportAnomalies": Rule(_roles(_W), Topics.ALL),
    "ListAnomalies": Rule(_roles(_W, _A), Topics.ALL),
    "ReportToolRun": Rule(_roles(_W), Topics.FILTER, filter="topics"),
    "ListToolRuns": Rule(_roles(_W, _A), Topics.FILTER, filter="topic"),
    "RecordObjectDeletions": _of_partitions(_W),
    "ImportRemoteLogSegments": _of_partitions(_M),
    # Of metadata topics, not of topics with data.
    "ListSourcePositions": Rule(_roles(_M), Topics.NONE),
    "UndeletePartition": _of_partitions(_M),
    # Reading a segment from other bytes could take its records away.
    "ReplaceSegmentData": _of_partitions(_M),
    "ResetLeaderEpoch": _of_partitions(_M),
}

_RLM: dict[str, Rule] = {
    "Fetch": _of_partitions(_R),
    "ListOffsets": _of_partitions(_R),
    "OffsetForLeaderEpoch": _of_partitions(_R),
    "DeleteRecords": _of_partitions(_D),
    "SetLocalRetentionOwner": Rule(_roles(_M), Topics.FILTER, filter="topic"),
    "BuildRemoteLogAuxState": _of_partitions(_R),
    "DescribePartitions": Rule(_roles(_R, _A), Topics.FILTER, filter="topics"),
    "GetCopyLag": Rule(_roles(_R, _A), Topics.ALL),
    "Drain": Rule(_roles(_M), Topics.ALL),
    "OnLeadershipChange": _of_partitions(_S),
    "StopPartitions": _of_partitions(
        _S, _D, by_value=ValueRule("partitions.reason", _STOP_REASONS)
    ),
}

RULES: Mapping[str, Rule] = {
    f"{service}/{rpc}": rule
    for service, rules in (
        ("RemoteStorageManager", _RSM),
        ("RemoteLogMetadataManager", _RLMM),
        ("RemoteLogManager", _RLM),
    )
    for rpc, rule in rules.items()
}
"""By SERVICE/RPC. No client may call an RPC without an entry."""

# What is served beside the contracts, by its whole name. Reflection shows what is in protos/, which
# is no secret; each client that may call anything may use it. Health has a port of its own.
OTHER_RULES: Mapping[str, Rule] = {
    f"grpc.reflection.{version}.ServerReflection/ServerReflectionInfo": Rule(ANY_ROLE, Topics.NONE)
    for version in ("v1alpha", "v1")
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table of roles.

    Attributes:
        rpc: without its service.
        value: of the request's enum that narrows the roles; empty if none does.
    """

    service: str
    rpc: str
    value: str
    roles: Roles
    topics: Topics


def table() -> list[Entry]:
    """Return the table of roles for people, in the order of the contracts."""
    entries = []
    for name, rule in RULES.items():
        service, rpc = name.split("/")
        narrowed = {"": rule.roles} if rule.by_value is None else rule.by_value.roles
        entries += [
            Entry(service, rpc, value, roles, rule.topics) for value, roles in narrowed.items()
        ]
    return entries


def rule_of(method: str) -> Rule | None:
    """Return the rule of a method as gRPC names it, /PACKAGE.SERVICE/RPC; None: no client may."""
    name = method.removeprefix("/")
    return RULES.get(name.removeprefix(f"{PACKAGE}.")) or OTHER_RULES.get(name)
