"""Seal a manifest: a second line holds its wrapped data key, and authenticates the first line.

The first line is the manifest's JSON document, over which its digest in the custom metadata is. The
wrapped key stands outside what digest and MAC cover, so that it can be wrapped under another key.
"""

from typing import Annotated, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from pydantic import BaseModel, ConfigDict, Field

from services.api.errors import CorruptSegmentError
from services.rsm.keys import DataKey, WrappedKey

_PURPOSE = "manifest"
_MAX_SEAL_BYTES = 16_384
_Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,2048}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class _WrappedKey(_Part):
    key_id: Annotated[str, Field(min_length=1, max_length=128)]
    data: _Hex

    @classmethod
    def of(cls, wrapped: WrappedKey) -> Self:
        return cls(key_id=wrapped.key_id, data=wrapped.data.hex())

    def value(self) -> WrappedKey:
        return WrappedKey(self.key_id, bytes.fromhex(self.data))


class Seal(_Part):
    """The second line of a manifest.

    Attributes:
        mac: of the document, under a key that is derived from the data key.
        replaced: the data key of the copy that this one replaced, as long as that is read.
    """

    key: _WrappedKey
    mac: _Hex
    replaced: _WrappedKey | None = None

    @property
    def wrapped_key(self) -> WrappedKey:
        return self.key.value()

    @property
    def replaced_wrapped_key(self) -> WrappedKey | None:
        return None if self.replaced is None else self.replaced.value()

    def with_keys(self, key: WrappedKey, replaced: WrappedKey | None) -> "Seal":
        """Return the seal with its data keys wrapped under other keys."""
        other = None if replaced is None else _WrappedKey.of(replaced)
        return self.model_copy(update={"key": _WrappedKey.of(key), "replaced": other})


def seal_of(document: bytes, key: DataKey, replaced: WrappedKey | None) -> Seal:
    """Return the seal of a document."""
    other = None if replaced is None else _WrappedKey.of(replaced)
    mac = _mac(document, key).finalize().hex()
    return Seal(key=_WrappedKey.of(key.wrapped), mac=mac, replaced=other)


def require_authentic(document: bytes, seal: Seal, key: DataKey, what: str) -> None:
    """Check a document against its seal.

    Raises:
        CorruptSegmentError: either was changed, or they do not belong together.
    """
    try:
        _mac(document, key).verify(bytes.fromhex(seal.mac))
    except InvalidSignature:
        raise CorruptSegmentError(
            f"{what}: the manifest fails its authentication: it is not what RSM wrote"
        ) from None


def join(document: bytes, seal: Seal | None) -> bytes:
    """Return a manifest as it is stored."""
    return document if seal is None else document + b"\n" + seal.model_dump_json().encode()


def split(stored: bytes, what: str) -> tuple[bytes, Seal | None]:
    """Split a stored manifest into its document and its seal, which is None if it has none.

    Raises:
        CorruptSegmentError: what follows the document is no seal.
    """
    document, newline, line = stored.partition(b"\n")
    if not newline:
        return document, None
    try:
        if len(line) > _MAX_SEAL_BYTES:
            raise ValueError("is too long")
        return document, Seal.model_validate_json(line)
    except ValueError:  # Its text would show the line.
        raise CorruptSegmentError(f"{what}: the manifest's seal is damaged") from None


def _mac(document: bytes, key: DataKey) -> HMAC:
    mac = HMAC(key.derived(_PURPOSE), SHA256())
    mac.update(document)
    return mac
