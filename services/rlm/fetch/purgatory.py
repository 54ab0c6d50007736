"""Let a fetch wait until there is enough to read (Kafka: DelayedFetch)."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from threading import BoundedSemaphore, Event

from services.api.calls import current_call
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchPartition, FetchRequest
from services.records.batches import BatchError
from services.rlm.fetch.errors import PARTITION_FAILURES
from services.rlm.fetch.partition_view import PartitionView
from services.rlm.fetch.segment_reader import RemoteSegmentReader, local_runs
from services.rlm.fetch.tier_calls import TierWait
from services.rlm.metrics import DELAYED_FETCHES
from services.rlm.partition import Partition

POLL_S = 0.05
"""How often a waiting fetch checks whether a log or a revision has changed."""

UNFOLLOWED_S = 1.0
"""How often it reads RLMM if nothing follows the revision of its partition."""

_ENDS_WAIT = (*PARTITION_FAILURES, BatchError)
"""An error that the answer has, or a tier that is late."""


class FetchPurgatory:
    """Let fetches wait while there is less to read than their `min_bytes`. Thread-safe.

    New records of a log, a higher high watermark and new segments of the tier end the wait; so does
    an error of any partition, which the answer then has.

    Args:
        max_delayed: fetches that wait at once, each in a thread of the server; others are answered
            at once.
    """

    def __init__(
        self,
        partition_of: Callable[[TopicIdPartition], Partition],
        remote: RemoteSegmentReader,
        max_delayed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partition_of = partition_of
        self._remote = remote
        self._waits = BoundedSemaphore(max_delayed)
        self._stopping = Event()
        self._clock = clock

    def end_waits(self) -> None:
        """End all waits, and let no later fetch wait."""
        self._stopping.set()

    def wait_for_records(self, request: FetchRequest) -> None:
        """Wait until `min_bytes` can be read, or `max_wait_ms` have passed."""
        if request.max_wait_ms == 0 or request.min_bytes == 0:
            return
        until_s = self._clock() + request.max_wait_ms / 1000
        partitions = [self._partition_of(p.topic_id_partition) for p in request.partitions]

        def state() -> list[object]:
            return [self._state_of(partition) for partition in partitions]

        before = state()
        while not self._has_enough(request, partitions) and self.wait_for_change(
            state, before, until_s - self._clock()
        ):
            before = state()

    def wait_for_change(
        self, state: Callable[[], object], before: object, timeout_s: float
    ) -> bool:
        """Wait until `state()` differs from `before`; return False if it did not in time.

        False at once if too many wait already, if RLM stops, or if the client is gone.
        """
        until_s = self._clock() + timeout_s
        is_bounded = not current_call().has_own_thread
        if is_bounded and not self._waits.acquire(blocking=False):
            return False
        DELAYED_FETCHES.inc()
        try:
            while (left_s := until_s - self._clock()) > 0 and current_call().is_active():
                if self._stopping.wait(min(POLL_S, left_s)):
                    return False
                if state() != before:
                    return True
            return False
        finally:
            DELAYED_FETCHES.dec()
            if is_bounded:
                self._waits.release()

    def tier_state(self, partition: Partition) -> object:
        """Return what differs once the tier may have another segment."""
        revision = partition.tier.polled_revision
        return int(self._clock() / UNFOLLOWED_S) if revision is None else revision

    def _state_of(self, partition: Partition) -> object:
        """Return what differs once log or tier have something new; cheap while they have not."""
        try:
            log = partition.role.local.read() if partition.role.local else None
        except PARTITION_FAILURES as e:
            return type(e)
        # The log is the same object as long as nothing changes.
        return self.tier_state(partition) if log is None else log

    def _has_enough(self, request: FetchRequest, partitions: Sequence[Partition]) -> bool:
        missing = min(request.min_bytes, request.max_bytes)
        begun: list[tuple[PartitionView, Future[int]]] = []
        # As the read that follows: the wait must not depend on RLMM if the read does not.
        ages = self._remote.ages_for(request.role)
        wait = TierWait(self._remote.calls.wait_of(request), is_shared=True)
        try:
            for fetched, partition in zip(request.partitions, partitions, strict=True):
                view = PartitionView(partition, self._remote, ages, wait)
                count = partial(_readable_bytes, view, fetched, request, missing)
                is_here = not view.needs_tier(fetched.fetch_offset)
                counted = count() if is_here else view.calls.from_memory(count)
                if counted is None:
                    begun.append((view, view.calls.begin(count)))
                    continue
                missing -= counted
                if missing <= 0:
                    return True
            return missing <= sum(view.calls.result(later) for view, later in begun)
        except _ENDS_WAIT:
            return True
        finally:
            for view, later in begun:
                later.cancel()
                view.calls.abandon()


def _readable_bytes(
    view: PartitionView, fetched: FetchPartition, request: FetchRequest, enough_bytes: int
) -> int:
    """Count the bytes that a reader of one partition would get, up to `enough_bytes`.

    What is not in the active segment counts as enough, as in Kafka.
    """
    offset = fetched.fetch_offset
    bounds = view.find_bounds(offset, request.isolation_level)
    if not bounds.log_start_offset <= offset <= bounds.log_end_offset:
        return enough_bytes
    end = bounds.end_for(request.isolation_level, request.role)
    if offset >= end:
        return 0
    log = view.log
    segment = log.segment_for(offset) if log else None
    if log is None or segment is None or segment.is_rolled:
        return enough_bytes
    readable_bytes = 0
    with closing(local_runs(segment, offset, end, lambda _: True)) as runs:
        for run in runs:
            readable_bytes += run.size_bytes
            if readable_bytes >= min(enough_bytes, fetched.max_bytes):
                break
    return min(readable_bytes, fetched.max_bytes)
