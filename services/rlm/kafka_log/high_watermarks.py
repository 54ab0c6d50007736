"""How far each partition of a log directory has come on all in-sync replicas, as its broker wrote
it down."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log.checkpoints import HIGH_WATERMARKS, read_offset_checkpoint
from services.rlm.kafka_log.errors import LogFileError
from services.rlm.kafka_log.looks import Looks, looks_of

_LOOKS_EVERY_S = 1.0


class HighWatermarks:
    """The replication-offset-checkpoint of one log directory. Thread-safe.

    The broker puts another file in its place every few seconds
    (replica.high.watermark.checkpoint.interval.ms) and when it stops. It is looked at once a second
    at most, however many partitions ask, and read when it is another one.

    What it says lags behind what the broker knows. It is a bound that is never too high: a high
    watermark does not fall but where a leader was elected uncleanly.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, log_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = log_dir / HIGH_WATERMARKS
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at_s: float | None = None
        self._read_as: Looks | None = None
        self._offsets: Mapping[tuple[str, int], int] | None = None
        self._failure: LogFileError | None = None

    def look(self) -> None:
        """Look at the file now.

        Raises:
            LogFileError: UNREADABLE, also where the file is damaged.
        """
        with self._lock:
            self._look()
            self._require_readable()

    def of(self, topic: str, partition: int) -> int | None:
        """The high watermark: the offset behind the last record that every in-sync replica has.
        None: there is no such file, so that no broker replicates what lies here.

        Raises:
            LogFileError: HIGH_WATERMARK_UNKNOWN where the file does not list the partition;
                UNREADABLE, also where it is damaged.
        """
        with self._lock:
            looked_at_s = self._looked_at_s
            if looked_at_s is None or self._clock() - looked_at_s >= _LOOKS_EVERY_S:
                self._look()
            self._require_readable()
            offsets = self._offsets
        if offsets is None:
            return None
        if (topic, partition) not in offsets:
            reason = (
                f"does not list {topic}-{partition}: which of its records all replicas have is not "
                "known until the broker, within seconds, has written it down"
            )
            raise LogFileError(ProblemKind.HIGH_WATERMARK_UNKNOWN, self._path, reason)
        return offsets[topic, partition]

    def _look(self) -> None:
        looks = looks_of(self._path)
        self._looked_at_s = self._clock()
        if looks is not None and looks == self._read_as:
            return
        self._read_as = self._offsets = self._failure = None
        try:
            self._offsets = read_offset_checkpoint(self._path)
            self._read_as = looks
        except LogFileError as e:
            self._failure = e

    def _require_readable(self) -> None:
        if self._failure is not None:
            failure = self._failure
            raise LogFileError(failure.kind, failure.path, failure.reason)
