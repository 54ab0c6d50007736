"""Has a broker's own retention take what is in the tier, while RLM is killed.

Who sets a broker's retention gives RLM the time that it may be away. Here the broker keeps all but
when it is told, and then nobody writes until the tier has what has rolled: else the speed of the
machine would say whether something is lost.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from services.api.ids import TopicIdPartition
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments
from tests.harness.eventually import eventually, eventually_holds
from tests.kafka.rlm_killer import RlmKiller
from tests.kafka.sidecar import DEADLINE_MS, Sidecar
from tests.kafka.tiered_broker import FINISHED, ranges_in_tier, ranges_on_disk
from tests.kafka.traffic import Traffic

_FOR_EVER = "-1"


@dataclass(frozen=True)
class KeptBytes:
    """Of a topic with segments of a tenth of that."""

    limit: int

    @property
    def config(self) -> str:
        return "retention_bytes"

    def is_due(self, segments: Sequence[LocalSegment]) -> bool:
        """There is as much to delete as to keep."""
        return sum(segment.size_bytes for segment in segments) > 2 * self.limit


@dataclass(frozen=True)
class KeptMs:
    """Longer than the tier takes, by far, for what has rolled."""

    limit: int

    @property
    def config(self) -> str:
        return "retention_ms"

    def is_due(self, segments: Sequence[LocalSegment]) -> bool:
        """The oldest is old enough, and the active one, which only the broker has, far from it."""
        oldest_ms, active_ms = _age_ms(segments[0]), _age_ms(segments[-1])
        return oldest_ms > self.limit and active_ms < self.limit / 2


def _age_ms(segment: LocalSegment) -> float:
    return (time.time() - segment.log_path.stat().st_mtime) * 1_000


def let_broker_delete(
    sidecar: Sidecar,
    name: TopicIdPartition,
    keeps: KeptBytes | KeptMs,
    traffic: Traffic,
    killer: RlmKiller,
) -> None:
    """Return when the broker has deleted some of the partition."""
    folder, start = sidecar.folder(name), sidecar.local_start(name)

    def assert_tier_has_what_rolled() -> None:
        rows = sidecar.rows(name)
        tiered = ranges_in_tier([row for row in rows if row.state is FINISHED])
        missing = set(ranges_on_disk(folder)) - set(tiered)
        assert not missing, f"{len(missing)} of {folder}, from {min(missing)} to {max(missing)}"

    def wait_until_tier_has_what_rolled() -> None:
        try:
            eventually_holds(assert_tier_has_what_rolled, DEADLINE_MS)
        except AssertionError as e:
            e.add_note(f"the broker: {sidecar.cluster.offsets(name.topic, name.partition)}")
            e.add_note(f"RLM: {sidecar.describe(name)}")
            raise

    def is_due() -> bool:
        return keeps.is_due(list_segments(folder))

    def has_deleted() -> bool:
        with traffic.paused():
            with killer.spared():
                wait_until_tier_has_what_rolled()
            if not is_due():  # by now: the active segment has grown old meanwhile
                return False
            sidecar.cluster.configure(name.topic, **{keeps.config: str(keeps.limit)})
            eventually(lambda: sidecar.local_start(name) > start, DEADLINE_MS, poll_ms=200)
            sidecar.cluster.configure(name.topic, **{keeps.config: _FOR_EVER})
        return True

    eventually(lambda: is_due() and has_deleted(), DEADLINE_MS)
