"""Whether a partition may have anything to delete at all, from what is at hand: pure.

A partition that rests must cost next to nothing, and listing its segments is not nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import UNLIMITED, TopicConfig
from services.rlm.tier_view.tier import Tier


@dataclass(frozen=True, slots=True)
class NothingDue:
    """A pass that had nothing to delete, and what it saw.

    Attributes:
        revision, config_revision: of the partition and of its topic's settings.
        until_s: retention.ms may ask for something from here on, by a clock that only grows; None:
            never, as long as the revisions stay.
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
    if tier.unfinished or nothing_due is None:
        return True
    seen = nothing_due.revision, nothing_due.config_revision
    if seen != (tier.revision, config_revision):
        return True
    if nothing_due.until_s is not None and now_s >= nothing_due.until_s:
        return True
    # Revisions do not move when the local log grows.
    size_bytes = only_local_bytes + tier.size_bytes
    return config.retention_bytes != UNLIMITED and size_bytes > config.retention_bytes


def due_after_ms(
    segments: Iterable[RemoteLogSegmentMetadata], config: TopicConfig, now_ms: int
) -> int | None:
    """How long until retention.ms may ask for something that it does not ask for now; None: it
    never will of these segments.

    Args:
        now_ms: by the database's clock.
    """
    oldest_ms = min((segment.max_timestamp_ms for segment in segments), default=None)
    if config.retention_ms == UNLIMITED or oldest_ms is None:
        return None
    return max(oldest_ms + config.retention_ms - now_ms, 0) + 1
