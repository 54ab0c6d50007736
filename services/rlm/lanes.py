"""Give each kind of RLM's tasks a lane of its own, so that long copies delay nothing else."""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

from services.common import tracing
from services.common.retry import Backoff
from services.rlm.partition_readers import LEASE_MS
from services.rlm.scheduler import Scheduler

FIRST_RETRY_S = 0.5
"""The wait after a task's first failure; it doubles up to the setting's maximum."""

_POLICIES_INTERVAL_S = 1.0
"""The interval at which policies of new topics are read; it costs nothing without new topics."""

_REMOVER_THREADS = 2

_RENEWED_EVERY_S = LEASE_MS / 3_000


def new_scheduler(backoff: Backoff, clock: Callable[[], float]) -> Scheduler:
    """Make a scheduler that records a run of a task as a trace of its own, with its calls."""

    def traced(lane: str, key: Hashable) -> AbstractContextManager[None]:
        return tracing.task(f"rlm {lane}", {"sediment.task": str(key)})

    return Scheduler(backoff, clock, traced)


class Lanes:
    """The lanes of a process; threads and metrics have the names that are given here.

    Args:
        copier_threads, expiration_threads, follower_threads: of these lanes; most others have one.
        interval_s: between the runs of a task, seconds; the remover has its own.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        copier_threads: int,
        expiration_threads: int,
        follower_threads: int,
        interval_s: float,
        remover_interval_s: float,
    ) -> None:
        lane = scheduler.lane
        self.copies = lane("copier", copier_threads, interval_s)
        self.expiration = lane("expiration", expiration_threads, interval_s)
        self.followers = lane("follower", follower_threads, interval_s)
        self.reports = lane("reporter", 1, interval_s)
        self.removal = lane("remover", _REMOVER_THREADS, remover_interval_s)
        self.trims = lane("trims", 1, interval_s)
        self.poll = lane("poller", 1, interval_s)
        self.policies = lane("policies", 1, min(_POLICIES_INTERVAL_S, interval_s))
        self.announcements = lane("announcements", 1, _RENEWED_EVERY_S)
        self.scan = lane("scan", 1, interval_s)
        self.revisions = lane("revisions", 1, interval_s)
        self.index_cache = lane("index-cache", 1, interval_s)
