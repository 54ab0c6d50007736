"""Prepare the reads of one request in parallel, and return them in its order."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock

from services.api.lineage import EpochEnd
from services.api.remote_log_manager import FetchPartition
from services.rlm.fetch.chunk_cache import MIB, Chunk
from services.rlm.fetch.errors import PARTITION_FAILURES, SegmentReplacedError
from services.rlm.fetch.partition_fetch import (
    DECIDED_BY_TIER,
    PartitionBudget,
    PartitionFetch,
    RequestBudget,
)
from services.rlm.fetch.partition_view import Bounds

FIRST_BYTES = MIB
"""What a read requests from the store at most before its turn."""


class PreparedRead:
    """The read of one partition, up to its first record. Single use.

    Attributes:
        bounds: of the partition; None if they are not known.
    """

    def __init__(
        self,
        request: FetchPartition,
        fetch: PartitionFetch,
        is_alone: bool,
    ) -> None:
        self.request = request
        self.fetch = fetch
        self.bounds: Bounds | None = None
        self._is_alone = is_alone
        self._prepared: Future[EpochEnd | None] | None = None
        self._has_requested = False
        self._lock = Lock()
        self._chunk: Chunk | None = None
        self._is_closed = False

    def needs_tier(self) -> bool:
        """Return whether the read may wait for RLMM or RSM."""
        request = self.request
        return self.fetch.view.needs_tier(request.fetch_offset, request.last_fetched_epoch)

    def begin(self, first_bytes: int) -> None:
        """Prepare: in this thread if what is in memory shows records, else in one of the pool.

        Args:
            first_bytes: how much to request from the store; 0: only find the offsets.
        """
        calls, bounds = self.fetch.view.calls, self.bounds
        self._prepared = Future()
        try:
            if calls.from_memory(lambda: self._prepare_once(first_bytes) is None):
                self._prepared.set_result(None)
                return
        except DECIDED_BY_TIER:
            pass
        except PARTITION_FAILURES as e:
            self._prepared.set_exception(e)
            return
        # The pool finds the same again, and what is missing.
        self.bounds, self._has_requested = bounds, False
        self._prepared = calls.begin(lambda: self._prepare(first_bytes))

    def ready(self, budget: PartitionBudget) -> EpochEnd | None:
        """Prepare the read, or wait until it is prepared.

        Returns:
            Where the reader's log leaves this one, if it does.

        Raises:
            ReadTimeoutError: if the read was not prepared in time.
            Others of PARTITION_FAILURES: why there is nothing to read.
        """
        if self._prepared is None:
            return self._check()
        view = self.fetch.view
        diverging = view.calls.result(self._prepared)
        if diverging is None and not self._has_requested and not budget.exhausted:
            # Those before it left more than they were charged for.
            self.begin(min(budget.left_bytes, FIRST_BYTES))
            view.calls.result(self._prepared)
        if self._is_alone:
            view.calls.wait.end_sharing()
        return diverging

    def close(self) -> None:
        """Release the read's slot and chunk; if its thread still runs, when it ends."""
        if self._prepared is not None:
            self._prepared.cancel()
            self.fetch.view.calls.abandon()
        with self._lock:
            self._is_closed = True
            chunk, self._chunk = self._chunk, None
        if chunk is not None:
            self.fetch.view.remote.release(chunk)

    def _prepare(self, first_bytes: int) -> EpochEnd | None:
        """Prepare by a tier that was read a moment ago, if that shows records; else read it."""
        view = self.fetch.view
        try:
            diverging = self._prepare_once(first_bytes)
            if diverging is None or not view.tier_is_recent:
                return diverging
        except DECIDED_BY_TIER as e:
            if not view.tier_is_recent and not isinstance(e, SegmentReplacedError):
                raise
        view.read_tier_always()
        self.bounds = None
        return self._prepare_once(first_bytes)

    def _prepare_once(self, first_bytes: int) -> EpochEnd | None:
        diverging = self._check() if self.bounds is None else None
        if diverging is None and self._is_alone:
            self._has_requested = True
            self.fetch.find_first()  # The reader itself requests all of its bytes at once.
        elif diverging is None and first_bytes > 0:
            self._has_requested = True
            self._set_chunk(self.fetch.request_first(first_bytes))
        return diverging

    def _check(self) -> EpochEnd | None:
        fetch, request = self.fetch, self.request
        self.bounds = bounds = fetch.find_bounds()
        fetch.view.check_leader_epoch(request.current_leader_epoch)
        if fetch.is_follower:
            fetch.view.require_leader()
        diverging = fetch.view.diverging_epoch(request.last_fetched_epoch, request.fetch_offset)
        if diverging is None:
            fetch.check_range(bounds)
        return diverging

    def _set_chunk(self, chunk: Chunk | None) -> None:
        with self._lock:
            if not self._is_closed:
                self._chunk = chunk
                return
        if chunk is not None:
            self.fetch.view.remote.release(chunk)


@contextmanager
def in_parallel(
    reads: Sequence[PreparedRead], at_once: int, total: RequestBudget
) -> Iterator[Iterator[PreparedRead]]:
    """Return reads in order while up to `at_once` that follow are prepared.

    Each that needs the tier requests its first bytes, and is charged for them in advance: those for
    which nothing may be left request nothing from the store yet.
    """
    try:
        yield _in_order(reads, at_once, total)
    finally:
        for read in reads:
            read.close()


def _in_order(
    reads: Sequence[PreparedRead], at_once: int, total: RequestBudget
) -> Iterator[PreparedRead]:
    begun = 0
    charged: dict[int, int] = {}
    for at, read in enumerate(reads):
        while begun < len(reads) and len(charged) < at_once:
            following = reads[begun]
            if following.needs_tier():
                left_bytes = total.left_bytes - sum(charged.values())
                first_bytes = max(min(following.request.max_bytes, FIRST_BYTES, left_bytes), 0)
                charged[begun] = first_bytes
                following.begin(first_bytes)
            begun += 1
        yield read
        charged.pop(at, None)
        read.close()
