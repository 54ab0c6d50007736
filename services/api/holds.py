"""Define holds: which offsets one keeps, from which deletions, for whom and until when.

A hold is the one thing that keeps data. Retention plans by `keeping_hold`, and RLMM refuses by it:

    what begins a deletion                         refused by
    a finished segment, the log start              every hold over one of the offsets
    a segment of a partition that is being removed every such hold but an export's
    the removal of a partition, an orphan          every hold of the partition but an export's
    a copy that failed, the mark of a partition    a rebuild
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from uuid import UUID

from services.api.calls import MAX_TEXT_LENGTH
from services.api.validation import (
    INT64_MAX,
    require,
    require_between,
    require_int32,
    require_int64,
)

MAX_HOLDS = 16
"""The most holds of one scope: a partition, a topic, or all topics."""

_YEAR_9999_MS = 253_402_300_799_000
MAX_EXPORT_LEASE_MS = 14 * 24 * 60 * 60 * 1000


class HoldKind(Enum):
    """Who sets a hold, and how it ends.

    OPERATOR: an administrator, for any reason. LEGAL: ended by the role counsel alone, and only
    growing until then. EXPORT: an export, for what it has yet to read; a lease that it renews.
    REBUILD: a rebuild of the metadata, over all topics, until it is confirmed; or an import of a
    topic's metadata from another cluster, until the log starts are known.
    """

    OPERATOR = "OPERATOR"
    LEGAL = "LEGAL"
    EXPORT = "EXPORT"
    REBUILD = "REBUILD"


class Mark(Enum):
    """What begins a deletion."""

    SEGMENT = "a finished segment"
    REMOVED_SEGMENT = "a finished segment of a partition in DELETE_PARTITION_STARTED"
    FAILED_COPY = "a copy that did not finish"
    SUPERSEDED = "a finished segment of which another one has all records"
    LOG_START = "a higher log start"
    PARTITION = "DELETE_PARTITION_STARTED"
    PARTITION_MARK = "DELETE_PARTITION_MARKED"
    OBJECTS = "objects that no metadata needs"


_EVERY_KIND = frozenset(HoldKind)
_NO_EXPORT = _EVERY_KIND - {HoldKind.EXPORT}
# What looks like a failed copy may have finished after the backup of a restored database.
_REBUILD = frozenset({HoldKind.REBUILD})
REFUSED_BY: Mapping[Mark, frozenset[HoldKind]] = {
    Mark.SEGMENT: _EVERY_KIND,
    Mark.REMOVED_SEGMENT: _NO_EXPORT,
    Mark.FAILED_COPY: _REBUILD,
    # An export has perhaps planned to read this segment, not the one that has its records.
    Mark.SUPERSEDED: _REBUILD | {HoldKind.EXPORT},
    Mark.LOG_START: _EVERY_KIND,
    Mark.PARTITION: _NO_EXPORT,
    Mark.PARTITION_MARK: _REBUILD,
    Mark.OBJECTS: _NO_EXPORT,
}


@dataclass(frozen=True, slots=True)
class Hold:
    """What keeps offsets from deletion; known by its name and its scope.

    Attributes:
        name: 1 to MAX_TEXT_LENGTH characters.
        topic_id, topic: None and "" for all topics.
        partition: None for all partitions.
        first_offset, last_offset: inclusive; they need not exist yet. None: no end.
        reason: for people.
        until_ms: by the database's clock; None: until it is ended.
        actor, set_at_ms: who set it last, and when it was first set; RLMM's to fill in.
    """

    name: str
    kind: HoldKind
    topic_id: UUID | None = None
    topic: str = ""
    partition: int | None = None
    first_offset: int = 0
    last_offset: int | None = None
    reason: str = ""
    until_ms: int | None = None
    actor: str = ""
    set_at_ms: int = 0

    def __post_init__(self) -> None:
        longest = MAX_TEXT_LENGTH
        require(1 <= len(self.name) <= longest, "name", f"must be 1 to {longest} characters")
        require(len(self.reason) <= longest, "reason", f"over {longest} characters")
        has_topic = self.topic_id is not None
        require(has_topic is (self.topic != ""), "topic", "must be set with topic_id, or neither")
        if self.partition is not None:
            require(has_topic, "topic_id", "must be set: a partition is one of a topic")
            require_int32(self.partition, "partition")
        require_int64(self.first_offset, "first_offset")
        if self.last_offset is not None:
            require_int64(self.last_offset, "last_offset")
            in_order = self.first_offset <= self.last_offset
            rule = f"must not be below first_offset {self.first_offset}, is {self.last_offset}"
            require(in_order, "last_offset", rule)
        if self.until_ms is not None:
            require_between(self.until_ms, "until_ms", 0, _YEAR_9999_MS)

    @property
    def scope(self) -> str:
        """Return what it is over, as commands take it."""
        if self.topic_id is None:
            return "--all"
        return self.topic if self.partition is None else f"{self.topic}-{self.partition}"

    @property
    def how_to_end(self) -> str:
        """Return the command that ends it."""
        if self.kind is HoldKind.REBUILD and self.topic_id is None:
            return "sediment db confirm-rebuild"
        legal = " --legal" if self.kind is HoldKind.LEGAL else ""
        return f"sediment holds end {self.scope} {shlex.quote(self.name)}{legal}"

    @property
    def offsets(self) -> str:
        if self.last_offset is not None:
            return f"offsets {self.first_offset}-{self.last_offset}"
        return f"offsets from {self.first_offset} on" if self.first_offset else "all offsets"

    def __str__(self) -> str:
        """Return what is kept, until when and why, for messages."""
        until = "it is ended"
        if self.until_ms is not None:
            until = f"{datetime.fromtimestamp(self.until_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        reason = f": {self.reason}" if self.reason else ""
        kind = self.kind.value.lower()
        return f"hold {self.name} ({kind}) keeps {self.offsets} until {until}{reason}"

    def covers(self, topic_id: UUID, partition: int) -> bool:
        """Return whether a partition is in its scope."""
        is_of_topic = self.topic_id in (None, topic_id)
        return is_of_topic and self.partition in (None, partition)

    def lasts_at(self, now_ms: int) -> bool:
        return self.until_ms is None or self.until_ms > now_ms

    def keeps(self, first_offset: int, last_offset: int) -> bool:
        """Return whether it is over one of the offsets, both ends inclusive."""
        begins_before_end = self.first_offset <= last_offset
        return begins_before_end and (self.last_offset is None or first_offset <= self.last_offset)


def require_hold(hold: Hold, lease_ms: int | None) -> None:
    """Check the arguments of set_hold.

    Raises:
        InvalidRequestError: names the field.
    """
    kind, once = hold.kind, "give until_ms or lease_ms, not both"
    require(lease_ms is None or hold.until_ms is None, "lease_ms", once)
    if kind is HoldKind.EXPORT:
        require(hold.partition is not None, "hold.partition", "an export's hold is of a partition")
        require(hold.last_offset is None, "hold.last_offset", "an export's hold has no end")
        require(lease_ms is not None, "lease_ms", "an export's hold needs a lease")
    elif kind is HoldKind.REBUILD:
        is_of_all = hold.partition is None and hold.first_offset == 0 and hold.last_offset is None
        is_endless = hold.until_ms is None and lease_ms is None
        require(is_of_all and is_endless, "hold", "a rebuild's is of whole topics, and has no end")
    else:
        require(hold.reason.strip() != "", "hold.reason", "must be set: who ends it will ask")
    if lease_ms is not None:
        most = MAX_EXPORT_LEASE_MS if kind is HoldKind.EXPORT else INT64_MAX // 1_000_000
        require_between(lease_ms, "lease_ms", 1, most)


def keeping_hold(
    holds: Iterable[Hold],
    mark: Mark,
    first_offset: int = 0,
    last_offset: int = INT64_MAX,
    log_start_offset: int = 0,
) -> Hold | None:
    """Return the hold that refuses a deletion; of several the one that lasts longest.

    Args:
        holds: those of the partition that last.
        first_offset, last_offset: of what is deleted, inclusive.
        log_start_offset: the tier's. No export reads what ends below it, so none keeps that.
    """
    kinds = REFUSED_BY[mark]
    if last_offset < log_start_offset:
        kinds -= {HoldKind.EXPORT}
    return max(
        (h for h in holds if h.kind in kinds and h.keeps(first_offset, last_offset)),
        key=lambda hold: INT64_MAX if hold.until_ms is None else hold.until_ms,
        default=None,
    )


@dataclass(frozen=True, slots=True)
class HoldPage:
    """One page of holds.

    Attributes:
        next_page_token: opaque; "" on the last page.
    """

    holds: tuple[Hold, ...]
    next_page_token: str
