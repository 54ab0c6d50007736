"""How long a rolled segment stays in the broker's log alone before it is copied: a pure rule.

KIP-1241. What it decides is when, and never whether: whoever has a wrong clock copies too early or
too late.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.api.topic_config import AS_LOCAL_RETENTION, UNLIMITED, TopicConfig
from services.rlm.kafka_log.partition_dir import LocalSegment

TellsTimestamp = Callable[[LocalSegment], int | None]
"""A segment's largest timestamp, ms; None: it cannot be read."""


@dataclass(frozen=True, slots=True)
class CopyLagDefaults:
    """What holds for topics that do not say; as in the topic's own settings.

    Source: log.remote.copy.lag.ms, log.remote.copy.lag.bytes.
    """

    ms: int = 0
    size_bytes: int = AS_LOCAL_RETENTION


@dataclass(frozen=True, slots=True)
class CopyLag:
    """Either of the two is enough for a segment to be copied; with neither nothing is.

    Attributes:
        ms: the newest record is so old; None: however old it is.
        size_bytes: so much lies behind the segment, the active one included; None: however much.
    """

    ms: int | None = 0
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """All is copied at once."""
        return 0 in (self.ms, self.size_bytes)


AT_ONCE = CopyLag()


def effective_copy_lag(config: TopicConfig, defaults: CopyLagDefaults) -> CopyLag:
    """A topic's lag. One derived from a local retention without limit never lets anything pass;
    a default is no longer than the local retention, behind which the broker deletes the segment."""
    return CopyLag(
        _effective(config.remote_copy_lag_ms, defaults.ms, config.effective_local_retention_ms),
        _effective(
            config.remote_copy_lag_bytes,
            defaults.size_bytes,
            config.effective_local_retention_bytes,
        ),
    )


def _effective(lag: int | None, default: int, local_retention: int) -> int | None:
    lag = default if lag is None else lag
    if local_retention == UNLIMITED:
        return None if lag == AS_LOCAL_RETENTION else lag
    return local_retention if lag == AS_LOCAL_RETENTION else min(lag, local_retention)


def eligible_log_segments(
    candidates: Sequence[LocalSegment],
    segments: Sequence[LocalSegment],
    lag: CopyLag,
    now_ms: int,
    largest_timestamp_ms: TellsTimestamp,
) -> list[LocalSegment]:
    """The candidates that are due, up to the first one that is not.

    Args:
        candidates: earliest first.
        segments: all of the log, the active one included.
        now_ms: by the clock of this host, which is the broker's.

    Source: RemoteLogManager.RLMCopyTask.candidateLogSegments.
    """
    if lag.is_none:
        return list(candidates)
    behind_bytes = _bytes_behind(segments)
    eligible: list[LocalSegment] = []
    for segment in candidates:
        has_enough_behind = (
            lag.size_bytes is not None and behind_bytes[segment.base_offset] >= lag.size_bytes
        )
        if not has_enough_behind and not _is_old(segment, lag.ms, now_ms, largest_timestamp_ms):
            break
        eligible.append(segment)
    return eligible


def _bytes_behind(segments: Sequence[LocalSegment]) -> dict[int, int]:
    """Of each segment, by its base offset, the size of all that follow it."""
    behind: dict[int, int] = {}
    total_bytes = 0
    for segment in reversed(segments):
        behind[segment.base_offset] = total_bytes
        total_bytes += segment.size_bytes
    return behind


def _is_old(
    segment: LocalSegment, lag_ms: int | None, now_ms: int, largest_timestamp_ms: TellsTimestamp
) -> bool:
    """Records of the future are as good as old: nobody knows when they will be."""
    if lag_ms is None:
        return False
    timestamp_ms = largest_timestamp_ms(segment)
    if timestamp_ms is None:
        return True
    age_ms = now_ms - timestamp_ms
    return age_ms < 0 or age_ms >= lag_ms
