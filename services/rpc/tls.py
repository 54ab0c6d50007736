"""Read certificate, key and authorities from files, and read them again when the files change."""

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from services.common.bounded_file import MAX_PEM_BYTES, read_bounded, shown

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

POLL_INTERVAL_S = 1.0
_log = logging.getLogger("sediment.tls")


class TlsFileError(Exception):
    """A file cannot be used for TLS; the message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of PEM files: own certificate and key, and the authorities of the other side.

    Certificate and key are both given or both None.
    """

    certificate: Path | None
    key: Path | None
    ca: Path | None

    def __str__(self) -> str:
        named = (("CA", self.ca), ("certificate", self.certificate), ("key", self.key))
        return ", ".join(f"{what} {shown(path)}" for what, path in named if path is not None)


@dataclass(frozen=True, slots=True, repr=False)
class TlsMaterial:
    """The contents of TlsFiles, checked; never printed, because of the key.

    `expires_at` is the end of the certificate, s since 1970.
    """

    certificate: bytes | None
    key: bytes | None
    ca: bytes | None
    expires_at: float = 0.0


def read_tls(files: TlsFiles) -> TlsMaterial:
    """Read and check the files.

    Raises:
        TlsFileError: a file is missing, unreadable or not PEM; the key belongs to another
            certificate; or the certificate has expired.
    """
    ca = certificate = key = None
    expires_at = 0.0
    if files.ca is not None:
        ca = _read(files.ca)
        _certificates(ca, files.ca)
    if files.certificate is not None and files.key is not None:
        certificate, key = _read(files.certificate), _read(files.key)
        leaf = _check_pair(certificate, key, files.certificate, files.key)
        expires_at = leaf.not_valid_after_utc.timestamp()
    return TlsMaterial(certificate, key, ca, expires_at)


class ReloadedTls:
    """Holds the latest good contents of TlsFiles. Thread-safe."""

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files for the first time.

        Raises:
            TlsFileError: they cannot be used.
        """
        self.files = files
        self._material = read_tls(files)
        self._clock = clock
        self._lock = Lock()
        self._checked_at = clock()
        self._problem = ""
        self._logged = ""

    def material(self) -> TlsMaterial:
        """Return the contents; read the files again if that was more than a second ago.

        Files that cannot be used leave the previous contents in force. They are logged when they
        are bad for the second time: certificate and key are replaced one after the other.
        """
        if self._clock() - self._checked_at < POLL_INTERVAL_S or not self._lock.acquire(False):
            return self._material
        try:
            self._reload()
        finally:
            self._checked_at = self._clock()
            self._lock.release()
        return self._material

    def _reload(self) -> None:
        try:
            material = read_tls(self.files)
        except TlsFileError as e:
            problem, self._problem = self._problem, str(e)
            if self._problem == problem != self._logged:
                self._logged = problem
                _log.warning("%s; the previous certificate, key and CA stay in force", problem)
            return
        if material != self._material:
            self._material = material
            _log.info("read new TLS files", extra={"files": str(self.files)})
        self._problem = self._logged = ""


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_PEM_BYTES)
    except OSError as e:
        reason = e.strerror or type(e).__name__
        raise TlsFileError(f"{shown(path)}: cannot be read: {reason}") from None


def _certificates(pem: bytes, path: Path) -> "list[Certificate]":
    # Here and below, because clients without TLS must not wait for it.
    from cryptography import x509
    from cryptography.utils import CryptographyDeprecationWarning

    # Bundles of public authorities hold old certificates, which no user can correct.
    warnings.simplefilter("ignore", CryptographyDeprecationWarning)
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as e:
        raise TlsFileError(f"{path}: holds no certificate in PEM") from e


def _check_pair(
    certificate: bytes, key: bytes, certificate_file: Path, key_file: Path
) -> "Certificate":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    leaf = _certificates(certificate, certificate_file)[0]
    try:
        private = serialization.load_pem_private_key(key, None)
        certified = leaf.public_key()
    except UnsupportedAlgorithm as e:
        raise TlsFileError(f"{key_file}: is of an unknown type; use an RSA or EC key") from e
    except (ValueError, TypeError) as e:
        why = "is encrypted" if b"ENCRYPTED" in key else "holds no private key in PEM"
        raise TlsFileError(f"{key_file}: {why}; write the key unencrypted in PEM") from e
    if private.public_key() != certified:
        raise TlsFileError(f"{key_file}: is the key of another certificate than {certificate_file}")
    if leaf.not_valid_after_utc <= datetime.now(UTC):
        ended = f"{leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
        raise TlsFileError(f"{certificate_file}: the certificate expired at {ended}; renew it")
    if leaf.not_valid_before_utc > datetime.now(UTC):
        start = f"{leaf.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}"
        raise TlsFileError(
            f"{certificate_file}: the certificate is not valid before {start}; check this "
            "machine's clock"
        )
    return leaf
