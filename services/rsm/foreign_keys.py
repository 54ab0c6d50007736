"""Open what Aiven's plugin encrypted, with the private keys of its key pairs."""

from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from Crypto.Cipher import PKCS1_OAEP
from Crypto.Hash import SHA3_512
from Crypto.PublicKey import RSA
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.common.inflate import DamagedDataError
from services.rsm.directory_keys import KeysError, private_content
from services.rsm.keys import AlteredKeyError, UnknownKeyError

_NONCE_BYTES = 12
ADDED_BYTES = _NONCE_BYTES + 16
"""By how much an encrypted chunk is longer: the nonce before it, the tag behind it."""

_MOST_PEM_BYTES = 64 * 1024


class SegmentCipher:
    """The data key of a segment."""

    def __init__(self, key: bytes, additional: bytes) -> None:
        self._key = AESGCM(key)
        self._additional = additional

    def opened(self, chunk: bytes | memoryview) -> bytes:
        """Decrypt a chunk; raise DamagedDataError if it was changed or has another key."""
        try:
            return self._key.decrypt(chunk[:_NONCE_BYTES], chunk[_NONCE_BYTES:], self._additional)
        except (InvalidTag, ValueError):
            raise DamagedDataError("it was changed, or encrypted with another key") from None


class KeyPairs:
    """The key pairs of the plugin's encryption.key.pairs, by id. Thread-safe.

    Data keys are encrypted with RSA-OAEP and SHA3-512, which `cryptography` does not know.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Read the private keys, each an unencrypted PEM that other users cannot read.

        Raises:
            KeysError: a file has none.
        """
        self._pairs = {id: _private_key(path) for id, path in files.items()}

    def cipher(self, data_key: str, additional: str) -> SegmentCipher:
        """Decrypt the data key of a manifest: KEY_PAIR_ID:BASE64, with additional data in base64.

        Raises:
            UnknownKeyError: there is no such key pair.
            AlteredKeyError: it is not of this form, or was not encrypted for that pair.
        """
        key_id, _, wrapped = data_key.partition(":")
        pair = self._pairs.get(key_id)
        if pair is None:
            held = ", ".join(sorted(self._pairs)) or "none"
            raise UnknownKeyError(f"with key pair {key_id!r}; key_pairs of its location has {held}")
        try:
            key = PKCS1_OAEP.new(pair, hashAlgo=SHA3_512).decrypt(b64decode(wrapped, validate=True))
            return SegmentCipher(key, b64decode(additional, validate=True))
        except ValueError:
            raise AlteredKeyError from None


def _private_key(path: Path) -> RSA.RsaKey:
    try:
        key = RSA.import_key(private_content(path, _MOST_PEM_BYTES))
    except (ValueError, IndexError, TypeError):
        key = None
    if key is None or not key.has_private():
        raise KeysError(f"{path}: is no private RSA key in PEM without a password")
    return key
