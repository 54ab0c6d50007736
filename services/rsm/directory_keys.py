"""Keep the keys of a ring in a directory of key files."""

import logging
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.common.bounded_file import open_regular
from services.rsm.keys import (
    KEY_BYTES,
    AlteredKeyError,
    RingStatus,
    UnknownKeyError,
    WrappedKey,
)

CURRENT = "current"
"""The file that names the key for new segments; replaced, it rotates the ring."""

MAX_KEYS = 1_000
_NONCE_BYTES = 12
KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_log = logging.getLogger(__name__)


class KeysError(Exception):
    """The directory holds no ring that can be used; the message names the file and the fault."""


@dataclass(frozen=True)
class _Ring:
    current: str
    keys: Mapping[str, AESGCM]


class DirectoryKeys:
    """The keys in a directory, one file of 32 bytes for each, named by its id.

    The directory is read again when a file in it changes. If it then holds no ring that can be
    used, the ring before it stays in use, and `status` says what is wrong.
    """

    def __init__(self, directory: Path) -> None:
        """Read the directory.

        Raises:
            KeysError: it holds no ring.
        """
        self._directory = directory
        self._seen = self._signature()
        self._ring = self._read()
        self._problem = ""

    def wrap(self, secret: bytes, use: bytes) -> WrappedKey:
        ring, nonce = self._current_ring(), secrets.token_bytes(_NONCE_BYTES)
        sealed = ring.keys[ring.current].encrypt(nonce, secret, use)
        return WrappedKey(ring.current, nonce + sealed)

    def unwrap(self, wrapped: WrappedKey, use: bytes) -> bytes:
        ring = self._current_ring()
        key = ring.keys.get(wrapped.key_id)
        if key is None:
            raise UnknownKeyError(f"{self._directory} has {', '.join(sorted(ring.keys))}")
        try:
            return key.decrypt(wrapped.data[:_NONCE_BYTES], wrapped.data[_NONCE_BYTES:], use)
        except (InvalidTag, ValueError):
            raise AlteredKeyError from None

    def status(self) -> RingStatus:
        ring = self._current_ring()
        return RingStatus(ring.current, sorted(ring.keys), self._problem)

    def _current_ring(self) -> _Ring:
        seen = self._signature()
        if seen != self._seen:
            try:
                self._ring, self._problem = self._read(), ""
                _log.info("%s: %d keys, %r is current", *self._described())
            except KeysError as e:
                self._problem = f"{e}; the ring before that stays in use"
                _log.warning("%s", self._problem)
            self._seen = seen
        return self._ring

    def _described(self) -> tuple[Path, int, str]:
        return self._directory, len(self._ring.keys), self._ring.current

    def _signature(self) -> object:
        """Return what changes with the directory; an error of it is read again until it is gone."""
        try:
            return sorted(
                (name, each.st_ino, each.st_mtime_ns, each.st_size, each.st_mode)
                for name in self._names()
                for each in (os.stat(self._directory / name),)
            )
        except (OSError, KeysError) as e:
            return str(e)

    def _names(self) -> list[str]:
        """Return the files, without those that begin with a dot: Kubernetes makes some."""
        names = [name for name in os.listdir(self._directory) if not name.startswith(".")]
        if len(names) > MAX_KEYS:
            raise KeysError(f"{self._directory}: has over {MAX_KEYS} files")
        return names

    def _read(self) -> _Ring:
        try:
            names = self._names()
        except OSError as e:
            raise KeysError(f"{self._directory}: {e.strerror}") from None
        if CURRENT not in names:
            text = f'has no file "{CURRENT}" that names the key for new segments'
            raise KeysError(f"{self._directory}: {text}")
        current = (
            private_content(self._directory / CURRENT, 64 + 2).decode(errors="replace").strip()
        )
        ids = sorted(set(names) - {CURRENT})
        keys = {id: AESGCM(_key(self._directory / id)) for id in ids}
        if current not in keys:
            held = ", ".join(ids) or "no key"
            raise KeysError(f"{self._directory / CURRENT}: names {current!r}; there is {held}")
        return _Ring(current, keys)


def _key(path: Path) -> bytes:
    if KEY_ID.fullmatch(path.name) is None:
        raise KeysError(f"{path}: a key's id is 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    content = private_content(path, KEY_BYTES)
    if len(content) != KEY_BYTES:
        raise KeysError(
            f"{path}: has {len(content)} bytes, a key has {KEY_BYTES}, raw, without a newline"
        )
    return content


def private_content(path: Path, most: int) -> bytes:
    """Read a file of at most `most` bytes that other users may neither read nor write."""
    try:
        with open(open_regular(path), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(most + 1)
    except OSError as e:
        raise KeysError(f"{path}: {e.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        text = f"mode {stat.S_IMODE(mode):04o} lets every user read or write it; chmod o-rw"
        raise KeysError(f"{path}: {text}")
    if len(content) > most:
        raise KeysError(f"{path}: has over {most} bytes")
    return content
