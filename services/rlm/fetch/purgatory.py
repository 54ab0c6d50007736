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
    """Hold fetches back while there is less to read than they ask for. Thread-safe.

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
        self._places = BoundedSemaphore(max_delayed)
        self._stopping = Event()
        self._clock = clock

    def end_waits(self) -> None:
        """End all waits, and let no later fetch wait."""
        self._stopping.set()

    def hold(self, request: FetchRequest) -> None:
        """Wait until `min_bytes` can be read, or `max_wait_ms` have passed."""
        if request.max_wait_ms == 0 or request.min_bytes == 0:
            return
        until_s = self._clock() + request.max_wait_ms / 1000
        partitions = [self._partition_of(p.topic_id_partition) for p in request.partitions]
        seen = self._changes(partitions)
        while not self._has_enough(request, partitions) and self.wait_for_change(
            lambda: self._changes(partitions), seen, until_s - self._clock()
        ):
            seen = self._changes(partitions)

    def wait_for_change(
        self, change_of: Callable[[], object], seen: object, timeout_s: float
    ) -> bool:
        """Wait until `change_of` differs from `seen`; return False if it did not in time.

        False at once if too many wait already, if RLM stops, or if the client is gone.
        """
        until_s = self._clock() + timeout_s
        needs_place = not current_call().has_own_thread
        if needs_place and not self._places.acquire(blocking=False):
            return False
        DELAYED_FETCHES.inc()
        try:
            while (left_s := until_s - self._clock()) > 0 and current_call().is_active():
                if self._stopping.wait(min(POLL_S, left_s)):
                    return False
                if change_of() != seen:
                    return True
            return False
        finally:
            DELAYED_FETCHES.dec()
            if needs_place:
                self._places.release()

    def _changes(self, partitions: Sequence[Partition]) -> list[object]:
        """Return what differs once there is something new; cheap while there is not."""
        return [self._change_of(partition) for partition in partitions]

    def _change_of(self, partition: Partition) -> object:
        try:
            log = partition.role.local.read() if partition.role.local else None
        except PARTITION_FAILURES as e:
            return type(e)
        if log is not None:
            return log  # The same object as long as nothing changes.
        revision = partition.tier.polled_revision
        return int(self._clock() / UNFOLLOWED_S) if revision is None else revision

    def _has_enough(self, request: FetchRequest, partitions: Sequence[Partition]) -> bool:
        missing = min(request.min_bytes, request.max_bytes)
        asked: list[tuple[PartitionView, Future[int]]] = []
        # As the read that follows: the wait must not depend on RLMM if the read does not.
        ages = self._remote.ages_for(request.role)
        wait = TierWait(self._remote.calls.wait_s, is_shared=True)
        try:
            for wanted, partition in zip(request.partitions, partitions, strict=True):
                view = PartitionView(partition, self._remote, ages, wait)
                count = partial(_readable_bytes, view, wanted, request, missing)
                if view.needs_tier(wanted.fetch_offset):
                    asked.append((view, view.calls.begin(count)))
                    continue
                missing -= count()
                if missing <= 0:
                    return True
            return missing <= sum(view.calls.result(begun) for view, begun in asked)
        except _ENDS_WAIT:
            return True
        finally:
            for view, begun in asked:
                begun.cancel()
                view.calls.abandon()


def _readable_bytes(
    view: PartitionView, wanted: FetchPartition, request: FetchRequest, enough: int
) -> int:
    """Count the bytes that a reader of one partition would get, up to `enough`.

    What is not in the active segment counts as enough, as in Kafka.
    """
    offset = wanted.fetch_offset
    bounds = view.find_bounds(offset, request.isolation_level)
    if not bounds.log_start_offset <= offset <= bounds.log_end_offset:
        return enough
    end = bounds.end_for(request.isolation_level, request.role)
    if offset >= end:
        return 0
    log = view.log
    segment = log.segment_for(offset) if log else None
    if log is None or segment is None or segment.is_rolled:
        return enough
    found = 0
    with closing(local_runs(segment, offset, end, lambda _: True)) as runs:
        for run in runs:
            found += run.size_bytes
            if found >= min(enough, wanted.max_bytes):
                break
    return min(found, wanted.max_bytes)
