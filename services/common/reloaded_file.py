"""Read a file again when its content changes, and keep the last content that could be used."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from prometheus_client import Counter, Gauge

from services.common.bounded_file import read_bounded, shown

POLL_INTERVAL_S = 1.0
MAX_FILE_BYTES = 1024 * 1024

FILE_ERRORS = Counter(
    "sediment_reloaded_file_errors",
    "Contents of a file that a running process could not use; the previous content stays in force.",
    ["file"],
)
FILE_LOADED = Gauge(
    "sediment_reloaded_file_loaded_timestamp_seconds",
    "When the content of a file that is in force was read, Unix time.",
    ["file"],
)
T = TypeVar("T")
_log = logging.getLogger("sediment.files")


class FileError(Exception):
    """A file cannot be used; the message names the file, the place in it and the reason."""


class ReloadedFile(Generic[T]):
    """Holds the parsed content of a file. Thread-safe."""

    def __init__(
        self,
        name: str,
        path: Path,
        parse: Callable[[bytes], T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file for the first time.

        Args:
            name: what the file is, in messages and metrics ("policy").
            parse: returns the value of a content; raises ValueError if it cannot be used.

        Raises:
            FileError: the file cannot be used.
        """
        self._name = name
        self._path = path
        self._parse = parse
        self._clock = clock
        self._lock = Lock()
        self._checked_at = clock()
        # The last content, whether it could be used or not.
        self._content = self._read()
        self._value = self._parsed(self._content)
        self._problem = ""
        self._loaded()

    def current(self) -> T:
        """Return the value; read the file again if that was more than a second ago.

        A content that cannot be used is logged and counted once.
        """
        # One thread reads; the others return the present value.
        if self._clock() - self._checked_at < POLL_INTERVAL_S or not self._lock.acquire(False):
            return self._value
        try:
            self._reload()
        finally:
            self._checked_at = self._clock()
            self._lock.release()
        return self._value

    def _reload(self) -> None:
        try:
            content = self._read()
            if content == self._content:
                self._problem = ""
                return
            # A content that takes long to refuse is parsed once.
            self._content = content
            self._value = self._parsed(content)
        except FileError as e:
            if str(e) != self._problem:
                self._problem = str(e)
                FILE_ERRORS.labels(self._name).inc()
                _log.error("%s; the previous %s stays in force", e, self._name)
            return
        self._problem = ""
        self._loaded()
        _log.info("read a new %s", self._name, extra={"file": str(self._path)})

    def _loaded(self) -> None:
        FILE_ERRORS.labels(self._name)
        FILE_LOADED.labels(self._name).set_to_current_time()

    def _read(self) -> bytes:
        try:
            return read_bounded(self._path, MAX_FILE_BYTES)
        except OSError as e:
            reason = e.strerror or type(e).__name__
            where = f"{self._name} file {shown(self._path)}"
            raise FileError(f"{where}: cannot be read: {reason}") from None

    def _parsed(self, content: bytes) -> T:
        try:
            return self._parse(content)
        except ValueError as e:
            raise FileError(f"{self._name} file {self._path}: {e}") from e
        except Exception as e:
            # Else a content that breaks its parser would end every call that needs it.
            reason = f"cannot be parsed ({type(e).__name__})"
            raise FileError(f"{self._name} file {self._path}: {reason}") from e
