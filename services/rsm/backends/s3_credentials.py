"""Provide the credentials that sign S3 requests, and renew them while RSM runs."""

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from threading import Lock

from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider

from services.api.errors import RetriableRemoteStorageError
from services.common.bounded_file import SecretFileError, read_secret

SETTLED_S = 1.0
"""How long changed files must stay the same: until then one may be new and the other one old."""

REFRESH_AHEAD_S = 300.0
"""How long before they expire credentials are renewed; less if they live for less than 20 min."""

RECHECK_S = 60.0
"""How often credentials that do not expire are obtained again."""

RETRY_PAUSE_S = 10.0
"""The pause between two renewals, if the first one failed or its credentials are refused too."""

_STATUS = re.compile(r"status code (\d{3})$")
_log = logging.getLogger(__name__)

_Fingerprint = tuple[tuple[int, int, int] | None, ...]


class StoreCredentials(ABC):
    """The credentials that sign the requests of RSM. Thread-safe."""

    @abstractmethod
    def retrieve(self) -> Credentials:
        """Return the present credentials.

        Raises:
            RetriableRemoteStorageError: there are none at present.
        """

    def left_s(self) -> float:
        """Return for how long the present credentials are valid, s; infinite if unknown.

        Raises:
            RetriableRemoteStorageError: as retrieve.
        """
        return inf

    @abstractmethod
    def renew(self, refused: Credentials) -> bool:
        """Obtain credentials again because the store refused `refused`; return whether they differ.

        A caller that gets True repeats its request once.
        """


class FixedCredentials(StoreCredentials):
    """Holds the credentials of the environment, which stay."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def retrieve(self) -> Credentials:
        return self._credentials

    def renew(self, refused: Credentials) -> bool:
        return self._credentials != refused


class FileCredentials(StoreCredentials):
    """Reads the keys from files, and again when the files change.

    Changed files are read when they have stayed the same for SETTLED_S, or when the store refuses
    the present keys. If they cannot be read, the present keys stay in use.
    """

    def __init__(
        self,
        access_key: Path,
        secret_key: Path,
        session_token: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files.

        Raises:
            SecretFileError: a file cannot be used.
        """
        self._access_key = access_key
        self._secret_key = secret_key
        self._session_token = session_token
        self._paths = [path for path in (access_key, secret_key, session_token) if path]
        self._now = now
        self._lock = Lock()
        self._known = self._fingerprint()
        self._credentials = self._read()
        self._changed, self._changed_s = self._known, 0.0

    def retrieve(self) -> Credentials:
        fingerprint = self._fingerprint()
        if fingerprint != self._known:
            with self._lock:
                if self._is_settled(fingerprint):
                    self._reload(fingerprint)
        return self._credentials

    def renew(self, refused: Credentials) -> bool:
        with self._lock:
            if self._credentials == refused:
                self._reload(self._fingerprint())
            return self._credentials != refused

    def _is_settled(self, fingerprint: _Fingerprint) -> bool:
        if fingerprint != self._changed:
            self._changed, self._changed_s = fingerprint, self._now()
        return self._now() - self._changed_s >= SETTLED_S

    def _reload(self, fingerprint: _Fingerprint) -> None:
        try:
            credentials = self._read()
        except SecretFileError as e:
            _log.warning("S3 credentials: %s; RSM continues with those read before", e)
            return
        self._known = fingerprint
        if credentials != self._credentials:
            self._credentials = credentials
            _log.info("read changed S3 credentials from %s", self._access_key)

    def _read(self) -> Credentials:
        token = self._session_token
        return Credentials(
            read_secret(self._access_key).strip(),
            read_secret(self._secret_key).strip(),
            None if token is None else read_secret(token).strip(),
        )

    def _fingerprint(self) -> _Fingerprint:
        return tuple(map(_fingerprint_of, self._paths))


def _fingerprint_of(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class SdkCredentials(StoreCredentials):
    """Obtains credentials from a provider of the minio SDK, and again before they expire."""

    def __init__(
        self,
        source: str,
        provider: Callable[[], Provider],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare the source; send no request yet.

        Args:
            source: names it in errors.
            provider: creates a provider for each renewal, because the SDK's providers cache what
                they have obtained until it expires.
        """
        self._source = source
        self._provider = provider
        self._now = now
        self._lock = Lock()
        self._credentials: Credentials | None = None
        self._obtained_s = 0.0
        self._renew_at_s = 0.0

    def retrieve(self) -> Credentials:
        present = self._credentials
        if present is not None and self._now_s() < self._renew_at_s:
            return present
        # While the present ones are valid, one thread renews them and the others use them.
        is_valid = present is not None and not self._is_expired(present)
        if not self._lock.acquire(blocking=not is_valid):
            assert present is not None
            return present
        try:
            if self._credentials is not present and self._credentials is not None:
                return self._credentials
            return self._obtain()
        except RetriableRemoteStorageError as e:
            if present is None or not is_valid:
                raise
            _log.warning("%s; RSM continues with those that it has", e)
            self._renew_at_s = self._now_s() + RETRY_PAUSE_S
            return present
        finally:
            self._lock.release()

    def left_s(self) -> float:
        expires_s = _expires_s(self.retrieve())
        return inf if expires_s is None else expires_s - self._now_s()

    def renew(self, refused: Credentials) -> bool:
        with self._lock:
            if self._credentials != refused:
                return True
            if self._now_s() - self._obtained_s < RETRY_PAUSE_S:
                return False
            try:
                return self._obtain() != refused
            except RetriableRemoteStorageError as e:
                _log.warning("%s; the store refuses those that RSM has", e)
                return False

    def _obtain(self) -> Credentials:
        self._obtained_s = self._now_s()
        try:
            credentials = self._provider().retrieve()
            _require_usable(credentials)
        except Exception as e:  # noqa: BLE001 - the SDK documents no exceptions
            # No cause is attached, because the SDK's texts have the URL and with it the token.
            status = _STATUS.search(str(e)) if isinstance(e, ValueError) else None
            why = f"status {status[1]}" if status else type(e).__name__
            raise RetriableRemoteStorageError(
                f"no S3 credentials from {self._source} ({why}); check RSM_CREDENTIALS and the "
                "settings that belong to it"
            ) from None
        expires_s = _expires_s(credentials)
        if expires_s is None:
            self._renew_at_s = self._obtained_s + RECHECK_S
        else:
            left_s = expires_s - self._obtained_s
            self._renew_at_s = expires_s - min(REFRESH_AHEAD_S, left_s / 4)
        self._credentials = credentials
        return credentials

    def _is_expired(self, credentials: Credentials) -> bool:
        expires_s = _expires_s(credentials)
        return expires_s is not None and expires_s <= self._now_s()

    def _now_s(self) -> float:
        return self._now().timestamp()


def _require_usable(credentials: Credentials) -> None:
    """Check what the SDK does not: each part goes into a header of every request.

    Raises:
        ValueError: a part is not text, or has characters that no header may have.
    """
    parts: tuple[object, ...] = (
        credentials.access_key,
        credentials.secret_key,
        credentials.session_token or "",
    )
    if not all(isinstance(part, str) and part.isascii() and part.isprintable() for part in parts):
        raise ValueError("the answer has a key that is not printable ASCII")


def _expires_s(credentials: Credentials) -> float | None:
    """Return when credentials expire, in Unix time; the SDK keeps UTC without a time zone."""
    at = credentials.expiration
    return None if at is None else at.replace(tzinfo=UTC).timestamp()
