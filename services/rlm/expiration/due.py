"""Whether a partition may have anything to delete at all, from what is at hand: pure.

A partition that rests must cost next to nothing, and listing its segments is not nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from services.api.retention import (
    DEFAULT_COPY_GRACE_MS,
    SIZE_NOT_APPLIED,
    RetentionPlan,
    newest_ms,
)
from services.api.topic_config import UNLIMITED, TopicConfig
from services.rlm.expiration.snapshot import Snapshot
from services.rlm.tier_view.tier import Tier

LOOK_AT_LEASES_MS = 60_000
"""No revision tells that a lease has ended, or that this process has done with a copy."""


@dataclass(frozen=True, slots=True)
class NothingDue:
    """A pass that had nothing to delete, and what it saw.

    Attributes:
        revision, config_revision: of the partition and of its topic's settings.
        until_s: something may be asked for from here on, by a clock that only grows; None: never,
            as long as the revisions stay.
        until_bytes: or once so many bytes are only here; None: never, in the same way.
    """

    revision: int
    config_revision: int
    until_s: float | None
    until_bytes: int | None


def may_be_due(
    tier: Tier,
    only_local_bytes: int,
    config: TopicConfig,
    config_revision: int,
    nothing_due: NothingDue | None,
    now_s: float,
) -> bool:
    """Whether retention has to look at the partition's segments; True where that is not sure."""
    if tier.segments == 0 and not tier.unfinished:
        return False
    has_limit = config.retention_ms != UNLIMITED or config.retention_bytes != UNLIMITED
    if not has_limit and not tier.unfinished and not tier.has_finished_below_log_start:
        return False
    if nothing_due is None:
        return True
    seen = nothing_due.revision, nothing_due.config_revision
    if seen != (tier.revision, config_revision):
        return True
    if nothing_due.until_s is not None and now_s >= nothing_due.until_s:
        return True
    # Revisions do not move when the local log grows.
    return nothing_due.until_bytes is not None and only_local_bytes >= nothing_due.until_bytes


def due_after_ms(
    snapshot: Snapshot,
    plan: RetentionPlan,
    config: TopicConfig,
    being_copied: Collection[UUID] = (),
) -> int | None:
    """How long until time alone may make something due: the segment that ended the scan grows older
    than retention.ms, or a copy ceases to count as under way; None: it never will.

    Args:
        plan: of this snapshot, these settings and `being_copied`; it has nothing left to begin.
    """
    now_ms = snapshot.state.read_at_ms
    young = {s.remote_log_segment_id.id: s for s in snapshot.young_copies()}
    moments_ms = [s.event_timestamp_ms + DEFAULT_COPY_GRACE_MS for s in young.values()]
    for segment in snapshot.segments:
        id = segment.remote_log_segment_id.id
        if id not in young and (segment.copy_leased or id in being_copied):
            moments_ms.append(now_ms + LOOK_AT_LEASES_MS)
            break
    # What lies behind it has its turn when it goes, however long it has been due.
    stopped_at = plan.stopped_at
    if config.retention_ms != UNLIMITED and stopped_at is not None:
        moments_ms.append(newest_ms(stopped_at) + config.retention_ms + 1)
    return min((at_ms - now_ms for at_ms in moments_ms if at_ms > now_ms), default=None)


def due_at_bytes(plan: RetentionPlan, config: TopicConfig) -> int | None:
    """From how many bytes on that are only here the size rule may take something; None: from none.

    Args:
        plan: by these settings; it has nothing left to begin.
    """
    stopped_at = plan.stopped_at
    if config.retention_bytes == UNLIMITED or stopped_at is None or plan.counted_bytes is None:
        return None
    # It takes no more than is in excess; where it was not applied, a later report may let it.
    is_applied = not any(note.startswith(SIZE_NOT_APPLIED) for note in plan.notes)
    excess_bytes = max(stopped_at.segment_size_in_bytes, 1) if is_applied else 1
    return config.retention_bytes - plan.counted_bytes + excess_bytes
