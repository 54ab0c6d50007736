"""Follow the revisions of partitions: from a watch of RLMM, or from polls while there is none."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

from services.api.errors import InvalidRequestError, RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_batches import MAX_REVISIONS
from services.api.watches import MAX_WATCHED, WatchedPartition, WatchUpdate
from services.common.batches import batches
from services.rlm.metrics import REVISIONS_WATCHED

_log = logging.getLogger(__name__)

STALLED_S = 10.0
"""How long a watch may have heartbeats without being complete up to a later time.

The RLMM that serves it cannot read its database then; another one may.
"""


class Revisions:
    """Cache the latest revisions of partitions. Thread-safe.

    Args:
        max_age_s: older revisions are not used, for example while RLMM is down; then RLMM is called
            for each partition.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rlmm = rlmm
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[TopicIdPartition, int] = {}
        self._watched: dict[TopicIdPartition, tuple[int, int]] = {}
        self._resets: Counter[TopicIdPartition] = Counter()
        self._at_s = 0.0
        self._watch: _Watch | None = None
        self._is_watching_allowed = False
        self._is_polling_logged = False

    def start(self) -> None:
        """Watch from the next `follow` on; before, it polls."""
        self._is_watching_allowed = True

    def stop(self) -> None:
        """End the watch at its next update, which is at most HEARTBEAT_S away."""
        self._is_watching_allowed = False
        with self._lock:
            self._watch = None

    def follow(self, names: Sequence[TopicIdPartition]) -> None:
        """Watch these partitions; poll them once if they are not watched already.

        Called again and again, it polls while RLMM serves no watch, and begins a watch once RLMM
        does, or when the partitions change. More than MAX_WATCHED partitions are always polled.
        """
        watch = self._watch
        if watch is not None and self.is_watching and watch.requested == set(names):
            return
        with self._lock:
            # An earlier watch must not overwrite what is polled now.
            self._watch = None
        self.poll(names)
        if self._is_watching_allowed and 0 < len(names) <= MAX_WATCHED:
            self._begin_watch(names)

    @property
    def is_watching(self) -> bool:
        """Return whether a watch runs; the next `follow` replaces one that has ended."""
        watch = self._watch
        return watch is not None and watch.is_alive()

    def poll(self, names: Sequence[TopicIdPartition]) -> None:
        """Read the revisions of these partitions, and drop all others."""
        polled: dict[TopicIdPartition, int] = {}
        # The time before the first request: no answer is older.
        at_s = self._clock()
        for batch in batches(names, MAX_REVISIONS):
            polled |= self._revisions_of(batch)
        with self._lock:
            self._known, self._at_s = polled, at_s
            self._watched = {name: at for name, at in self._watched.items() if name in polled}

    def of(self, name: TopicIdPartition) -> int | None:
        """Return the latest revision; None if it is unknown or too old."""
        with self._lock:
            if self._clock() - self._at_s > self._max_age_s:
                return None
            return self._known.get(name)

    def resets(self, name: TopicIdPartition) -> int:
        """Return how often anything may have changed, for example as the database was set back.

        The same revision means nothing then: it may be another change.
        """
        with self._lock:
            return self._resets[name]

    def _revisions_of(self, names: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        """Return the revisions of all partitions that RLMM accepts.

        RLMM refuses the whole request for one bad partition, for example if it knows the topic id
        under another name. The request is then split, so that one partition does not hide others.
        """
        try:
            return dict(zip(names, self._rlmm.partition_revisions(names), strict=True))
        except InvalidRequestError:
            if len(names) == 1:
                return {}
            middle = len(names) // 2
            return self._revisions_of(names[:middle]) | self._revisions_of(names[middle:])

    def _begin_watch(self, names: Sequence[TopicIdPartition]) -> None:
        with self._lock:
            accepted = list(self._known)
            if not accepted:
                return
            self._watch = watch = _Watch(frozenset(names), accepted, self._clock(), self._read)
        watch.start()

    def _read(self, watch: "_Watch") -> None:
        """Read one watch until it fails or another one replaces it."""
        with self._lock:
            watched = [
                WatchedPartition(name, *self._watched.get(name, ())) for name in watch.accepted
            ]
        live = 0
        try:
            with closing(self._rlmm.watch_partitions(watched)) as updates:
                for update in updates:
                    if not live:
                        live = len(watched)
                        REVISIONS_WATCHED.inc(live)
                        self._is_polling_logged = False
                    if not self._apply(watch, update):
                        return
                    if self._clock() - watch.progress_s > STALLED_S:
                        raise RetriableRemoteStorageError(
                            f"the watch has not been complete for {STALLED_S:.0f} s"
                        )
        except RemoteStorageError as e:
            if not self._is_polling_logged:
                _log.info("RLMM does not report changes; polling it once per interval: %s", e)
                self._is_polling_logged = True
        except Exception:  # noqa: BLE001 - logged; the next poll begins another watch
            _log.exception("the watch of RLMM's partitions failed; polling RLMM once per interval")
        finally:
            REVISIONS_WATCHED.dec(live)

    def _apply(self, watch: "_Watch", update: WatchUpdate) -> bool:
        """Apply an update; return whether the watch continues."""
        with self._lock:
            if watch is not self._watch:
                return False
            for each in update.partitions:
                name = watch.accepted[each.place]
                self._known[name] = each.revision
                self._watched[name] = each.revision, each.changed_at_us
                self._resets[name] += each.everything
            self._at_s = max(self._at_s, watch.began_s + update.complete_through_ms / 1000)
            watch.record_progress(update.complete_through_ms, self._clock())
            return True


class _Watch(threading.Thread):
    """Read a watch of partitions in a thread of its own.

    Attributes:
        requested: the partitions to follow.
        accepted: those that RLMM accepts, in the order of the request.
        began_s: a time before the call, so that no update counts as later than it is.
        progress_s: when an update was last complete up to a later time than the one before.
    """

    def __init__(
        self,
        requested: frozenset[TopicIdPartition],
        accepted: Sequence[TopicIdPartition],
        began_s: float,
        read: "Callable[[_Watch], None]",
    ) -> None:
        super().__init__(name="revision-watch", daemon=True)
        self.requested = requested
        self.accepted = accepted
        self.began_s = began_s
        self.progress_s = began_s
        self._complete_through_ms = -1
        self._read = read

    def record_progress(self, complete_through_ms: int, now_s: float) -> None:
        if complete_through_ms > self._complete_through_ms:
            self._complete_through_ms = complete_through_ms
            self.progress_s = now_s

    def run(self) -> None:
        self._read(self)
