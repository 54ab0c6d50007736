"""Check what a service depends on, and report whether it is ready."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from grpc_health.v1 import health, health_pb2

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError

CHECK_INTERVAL_S = 1.0

# A check that takes longer counts as failed.
CHECK_TIMEOUT_S = 5.0

# How long the port stays shut for a check that may pass yet: a client that meets a refusal repeats
# its call at the same service, if that has the fewest calls.
FIRST_PASS_TIMEOUT_S = 10.0
_FIRST_CHECK_ROUND_S = 0.1
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_log = logging.getLogger("sediment.server")


class Readiness:
    """Report the results of checks to health, and changes to log and standard output.

    Attributes:
        announcement: the line for standard output when the first check has passed.
        problem: why the service is not ready; "" if it is.
    """

    def __init__(self, name: str, full_name: str, health_servicer: health.HealthServicer) -> None:
        """Prepare reports of readiness; `full_name` is that of the gRPC service."""
        self.announcement = ""
        self.problem = "not checked yet"
        self._name = name
        self._full_name = full_name
        self._health = health_servicer
        self._lock = threading.Lock()
        self._before = self.problem
        self._is_announced = False
        self._is_ended = False

    def report(self, error: Exception | None) -> None:
        """Report a check's error, or None if the check passed; no effect after `end`."""
        with self._lock:
            if self._is_ended:
                return
            self._set(NOT_SERVING if error else SERVING)
            if not error and not self._is_announced:
                # Closed, or of a reader that has left: the service is no worse for it.
                with suppress(OSError, AttributeError):
                    sys.stdout.write(self.announcement + "\n")
                    sys.stdout.flush()
                self._is_announced = True
            problem = _text_of(error)
            if problem != self._before:
                _log.warning(
                    f"not ready: {problem}" if error else "ready",
                    extra={"service": self._name},
                    exc_info=None if isinstance(error, RemoteStorageError) else error,
                )
                self._before = problem
            # Only the log shows what other errors hold.
            is_ours = error is None or isinstance(error, RemoteStorageError)
            self.problem = problem if is_ours else f"{type(error).__name__}, see its log"

    def end(self) -> None:
        """Report the service as not ready from now on."""
        with self._lock:
            self._is_ended = True
            self.problem = "the service is stopping"
            self._set(NOT_SERVING)

    def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        """Set readiness but not liveness: a draining process must not be killed."""
        self._health.set("", status)
        self._health.set(self._full_name, status)


class Checks(threading.Thread):
    """Run one check after another. No code joins this thread: a check may never return."""

    def __init__(
        self, check: Callable[[], None], readiness: Readiness, stopping: threading.Event
    ) -> None:
        super().__init__(name="checks", daemon=True)
        self._check = check
        self._readiness = readiness
        self._stopping = stopping
        self._began_at: float | None = None
        self._is_decided = threading.Event()
        self._is_open = threading.Event()

    def run_first(self) -> None:
        """Wait until a check passes, or fails for good, before the port opens.

        Clients call an endpoint once it is connected, and a service refuses calls until its first
        check has passed. After FIRST_PASS_TIMEOUT_S the port opens all the same, so that callers
        read why.
        """
        self.start()
        ends_at = time.monotonic() + FIRST_PASS_TIMEOUT_S
        while not self._is_decided.wait(_FIRST_CHECK_ROUND_S) and not self._stopping.is_set():
            if time.monotonic() > ends_at:
                return

    def watch(self, depends_on: str) -> None:
        """Report until the service stops; return then at once, even if a check hangs."""
        self._is_open.set()
        while not self._stopping.wait(CHECK_INTERVAL_S):
            began_at = self._began_at
            if began_at is not None and time.monotonic() - began_at > CHECK_TIMEOUT_S:
                late = f"a readiness check has not finished within {CHECK_TIMEOUT_S:.0f} s"
                text = f"{late}: no answer from {depends_on}"
                self._readiness.report(RetriableRemoteStorageError(text))

    def run(self) -> None:
        while not self._stopping.is_set():
            self._began_at = time.monotonic()
            error = self._error()
            self._began_at = None
            if not isinstance(error, RetriableRemoteStorageError):
                self._is_decided.set()
            if error is None:
                self._is_open.wait()
            self._readiness.report(error)
            self._stopping.wait(CHECK_INTERVAL_S)

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
