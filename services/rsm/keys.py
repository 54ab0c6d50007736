"""Wrap a data key for each copy of a segment under a key of the ring, and cache unwrapped ones.

What for. Whoever can write to a bucket could otherwise change history unseen. Each copy has a data
key of its own: from it come the key that authenticates its manifest and, if its location is
encrypted, the one of its chunks. The manifest holds the data key only wrapped by a key of the ring,
so that a key of the ring is replaced without touching a segment's bytes.

Invariants.
* A wrapped key names what it is for (KeyUse), and is unwrapped for nothing else: that of another
  segment, partition, topic, deployment or copy is refused, as is a changed one.
* Unwrapped data keys are cached, MAX_DATA_KEYS for KEEP_S each, so that reads go on for that long
  if a provider is away, or a key of the ring destroyed. None is in a log line, a repr or an error.
* Providers are called under no lock, and once by concurrent readers of one copy.
"""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

from cachetools import TTLCache
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from services.api.errors import CorruptSegmentError, StoreAccessDeniedError
from services.common.single_flight import SingleFlight

KEY_BYTES = 32
KEEP_S = 600.0
MAX_DATA_KEYS = 4096


class UnknownKeyError(Exception):
    """The ring has no key with this id; the text says what it has."""


class AlteredKeyError(Exception):
    """The wrapped key is not one that the key with this id has wrapped for this use."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What a data key is for: one copy of one segment of one deployment."""

    deployment_id: str
    topic_id: UUID
    partition: int
    segment_id: UUID
    attempt: str

    def to_bytes(self) -> bytes:
        """Return the additional data that binds a wrapped key to its use."""
        ids = (self.topic_id.hex, self.partition, self.segment_id.hex, self.attempt)
        return json.dumps(["sediment data key", self.deployment_id, *ids]).encode()


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as a manifest holds it; `key_id` is of the ring's key that unwraps it."""

    key_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class DataKey:
    """The unwrapped data key of one copy, from which the keys for each purpose are derived."""

    wrapped: WrappedKey
    secret: bytes = field(repr=False, compare=False)

    def derived(self, purpose: str) -> bytes:
        """Return the key of 256 bits for "manifest" or "chunks"."""
        info = f"sediment {purpose}".encode()
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(self.secret)


@dataclass(frozen=True, slots=True)
class RingStatus:
    """The ids of the ring's keys, the one that wraps new data keys, and what is wrong with it.

    `problem` is "" if nothing is: with a problem the ring is as it was before that.
    """

    current: str
    ids: Sequence[str]
    problem: str = ""


class KeyProvider(Protocol):
    """Wrap and unwrap data keys by the keys of a ring. Thread-safe.

    Every method raises RetriableRemoteStorageError if the provider is away, and
    StoreAccessDeniedError if it refuses RSM's credentials.
    """

    def wrap(self, secret: bytes, use: bytes) -> WrappedKey:
        """Wrap a data key under the current key, bound to `use`."""

    def unwrap(self, wrapped: WrappedKey, use: bytes) -> bytes:
        """Return the data key that was wrapped for the same use.

        Raises:
            UnknownKeyError: there is no such key.
            AlteredKeyError: the bytes or the use are others.
        """

    def status(self) -> RingStatus:
        """Return which keys there are."""


class KeyRing:
    """Make, unwrap and rewrap the data keys of one deployment. Thread-safe."""

    def __init__(
        self,
        provider: KeyProvider,
        deployment_id: str,
        clock: Callable[[], float] = time.monotonic,
        max_data_keys: int = MAX_DATA_KEYS,
    ) -> None:
        self._provider = provider
        self.deployment_id = deployment_id
        cache: TTLCache[tuple[WrappedKey, KeyUse], bytes] = TTLCache(max_data_keys, KEEP_S, clock)
        self._secrets = SingleFlight(cache)

    def status(self) -> RingStatus:
        """Return the state of the ring; raises as KeyProvider."""
        try:
            return self._provider.status()
        except UnknownKeyError as e:
            raise StoreAccessDeniedError(f"the ring's current key cannot be used: {e}") from None

    def use_of(self, use: KeyUse) -> KeyUse:
        """Return a use as it is bound: a copy from before RSM_DEPLOYMENT_ID counts as ours."""
        return use if use.deployment_id else replace(use, deployment_id=self.deployment_id)

    def new_key(self, use: KeyUse) -> DataKey:
        """Make a data key for a copy that begins now."""
        secret = secrets.token_bytes(KEY_BYTES)
        wrapped = self._wrapped(secret, use)
        self._secrets.run((wrapped, use), lambda: secret)  # The copy needs it at its end again.
        return DataKey(wrapped, secret)

    def data_key(self, wrapped: WrappedKey, use: KeyUse, what: str) -> DataKey:
        """Unwrap a data key; `what` names in errors the object that holds it.

        Raises:
            CorruptSegmentError: it was changed, or is of another use.
            StoreAccessDeniedError: the ring lacks its key; or as KeyProvider.
            RetriableRemoteStorageError: the provider is away.
        """
        secret, _ = self._secrets.run((wrapped, use), lambda: self._unwrapped(wrapped, use, what))
        return DataKey(wrapped, secret)

    def require_unwraps(self, wrapped: WrappedKey, use: KeyUse, what: str) -> None:
        """Check that the provider unwraps a key, whatever is cached; raises as `data_key`."""
        self._unwrapped(wrapped, use, what)

    def rewrapped(self, wrapped: WrappedKey, use: KeyUse, what: str) -> WrappedKey:
        """Wrap the same data key under the current key; raises as `data_key`."""
        return self._wrapped(self.data_key(wrapped, use, what).secret, use)

    def _wrapped(self, secret: bytes, use: KeyUse) -> WrappedKey:
        try:
            return self._provider.wrap(secret, use.to_bytes())
        except UnknownKeyError as e:
            raise StoreAccessDeniedError(f"the ring's current key cannot be used: {e}") from None

    def _unwrapped(self, wrapped: WrappedKey, use: KeyUse, what: str) -> bytes:
        try:
            return self._provider.unwrap(wrapped, use.to_bytes())
        except UnknownKeyError as e:
            raise missing_key(wrapped, what, str(e)) from None
        except AlteredKeyError:
            raise CorruptSegmentError(
                f"{what}: its wrapped key fails its authentication under key {wrapped.key_id!r}: "
                "it was changed, or is of another segment, copy or deployment"
            ) from None


def missing_key(wrapped: WrappedKey, what: str, why: str) -> StoreAccessDeniedError:
    """Return the error for an object whose key the ring lacks, perhaps not for ever."""
    return StoreAccessDeniedError(
        f"{what}: needs key {wrapped.key_id!r}: {why}; restore that key to the ring of [keys] in "
        "RSM_LOCATIONS_FILE: if it is destroyed, so is every segment that needs it"
    )
