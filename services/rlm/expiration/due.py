"""Whether a partition may have anything to delete at all, from what is at hand: pure.

A partition that rests must cost next to nothing, and listing its segments is not nothing.
"""

from dataclasses import dataclass

from services.api.retention import DEFAULT_COPY_GRACE_MS, newest_ms
from services.api.topic_config import UNLIMITED, TopicConfig
from services.rlm.expiration.snapshot import Snapshot
from services.rlm.tier_view.tier import Tier

LOOK_AT_LEASES_MS = 60_000
"""No revision tells that a lease has ended."""


@dataclass(frozen=True, slots=True)
class NothingDue:
    """A pass that had nothing to delete, and what it saw.

    Attributes:
        revision, config_revision: of the partition and of its topic's settings.
        until_s: something may be asked for from here on, by a clock that only grows; None: never,
            as long as the revisions stay.
    """

    revision: int
    config_revision: int
    until_s: float | None


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
    size_bytes = only_local_bytes + tier.size_bytes
    return config.retention_bytes != UNLIMITED and size_bytes > config.retention_bytes


def due_after_ms(snapshot: Snapshot, config: TopicConfig) -> int | None:
    """How long until time alone may make something due that is not due now: a segment grows older
    than retention.ms, or a copy ceases to count as under way; None: it never will.
    """
    now_ms = snapshot.state.read_at_ms
    moments_ms = [s.event_timestamp_ms + DEFAULT_COPY_GRACE_MS for s in snapshot.young_copies()]
    moments_ms += [
        max(s.event_timestamp_ms + DEFAULT_COPY_GRACE_MS, now_ms + LOOK_AT_LEASES_MS)
        for s in snapshot.segments
        if s.copy_leased
    ]
    if config.retention_ms != UNLIMITED:
        moments_ms += [newest_ms(s) + config.retention_ms + 1 for s in snapshot.segments]
    if not moments_ms:
        return None
    return max(min(moments_ms) - now_ms, 1)
