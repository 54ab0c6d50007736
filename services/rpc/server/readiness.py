"""Check periodically whether a service is ready, and report it."""

import logging
import sys
import threading
import time
from collections.abc import Callable

from grpc_health.v1 import health, health_pb2

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError

INTERVAL_S = 1.0

# A check that takes longer counts as failed.
CHECK_TIMEOUT_S = 5.0
_log = logging.getLogger("sediment.server")
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Readiness:
    """Report the results of checks to health, and changes to log and standard output."""

    def __init__(
        self, name: str, full_name: str, health_servicer: health.HealthServicer, announcement: str
    ) -> None:
        """
        Args:
            full_name: of the gRPC service.
            announcement: the line for standard output when the first check has passed.
        """
        self._name = name
        self._full_name = full_name
        self._health = health_servicer
        self._announcement = announcement
        self._lock = threading.Lock()
        self._before = "not checked yet"
        self._is_announced = False
        self._is_ended = False

    def found(self, error: Exception | None) -> None:
        """Report a check's error, or None if it passed. After `end` nothing is reported."""
        with self._lock:
            if self._is_ended:
                return
            self._set(_NOT_SERVING if error else _SERVING)
            if not error and not self._is_announced:
                sys.stdout.write(self._announcement + "\n")
                sys.stdout.flush()
                self._is_announced = True
            trouble = _text_of(error)
            if trouble != self._before:
                _log.warning(
                    f"not ready: {trouble}" if error else "ready",
                    extra={"service": self._name},
                    exc_info=None if isinstance(error, RemoteStorageError) else error,
                )
                self._before = trouble

    def end(self) -> None:
        """Report the service as not ready from now on."""
        with self._lock:
            self._is_ended = True
            self._set(_NOT_SERVING)

    def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        """Set readiness but not liveness: a process that drains must not be killed for it."""
        self._health.set("", status)
        self._health.set(self._full_name, status)


def watch_readiness(
    check: Callable[[], None], readiness: Readiness, stopping: threading.Event
) -> None:
    """Check until `stopping` is set; return then at once, even if a check hangs."""
    checks = _Checks(check, readiness, stopping)
    checks.start()
    while not stopping.wait(INTERVAL_S):
        if checks.lasts_s() > CHECK_TIMEOUT_S:
            text = f"a readiness check has not finished within {CHECK_TIMEOUT_S:.0f} s"
            readiness.found(RetriableRemoteStorageError(text))


class _Checks(threading.Thread):
    """Run one check after another. Nothing joins this thread: a check may never return."""

    def __init__(
        self, check: Callable[[], None], readiness: Readiness, stopping: threading.Event
    ) -> None:
        super().__init__(name="checks", daemon=True)
        self._check = check
        self._readiness = readiness
        self._stopping = stopping
        self._began_at: float | None = None

    def lasts_s(self) -> float:
        """Return how long the running check has taken; 0 if none runs."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at

    def run(self) -> None:
        while not self._stopping.is_set():
            self._began_at = time.monotonic()
            error = self._error()
            self._began_at = None
            self._readiness.found(error)
            self._stopping.wait(INTERVAL_S)

    def _error(self) -> Exception | None:
        """Run the check and return its error, or None."""
        try:
            self._check()
        except Exception as e:  # noqa: BLE001 - a boundary: no check may end the process
            return e
        return None


def _text_of(error: Exception | None) -> str:
    if error is None:
        return ""
    return str(error) if isinstance(error, RemoteStorageError) else repr(error)
