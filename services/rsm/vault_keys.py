"""Keep the keys of a ring in the transit engine of a HashiCorp Vault, or of an OpenBao."""

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hvac
from hvac.exceptions import Forbidden, InvalidPath, InvalidRequest, Unauthorized, VaultError

from services.api.errors import RetriableRemoteStorageError, StoreAccessDeniedError
from services.common.bounded_file import SecretFileError, read_secret
from services.rsm.directory_keys import KEY_ID
from services.rsm.keys import AlteredKeyError, RingStatus, UnknownKeyError, WrappedKey

_TIMEOUT_S = 5
_OF_A_KEY = ("not found", "disallowed by policy")
"""What refusals of a key or its version say; others are of what was to be unwrapped."""
_WRAPPED = re.compile(r"vault:v([1-9][0-9]{0,9}):[A-Za-z0-9+/=]+")


class VaultKeys:
    """The versions of one key of a transit engine.

    The key must be of a type that takes associated data: aes256-gcm96, aes128-gcm96 or
    chacha20-poly1305. The token is read for each request, so that an agent may renew it.
    """

    def __init__(
        self, address: str, mount: str, key: str, token_file: Path, ca_file: Path | None = None
    ) -> None:
        """Set up requests; send none yet."""
        verify = True if ca_file is None else str(ca_file)
        self._vault = hvac.Client(address, verify=verify, timeout=_TIMEOUT_S)
        self._mount, self._key, self._token_file = mount, key, token_file
        self._what = f"key {key!r} of {mount!r} in the Vault at {address}"

    def wrap(self, secret: bytes, use: bytes) -> WrappedKey:
        with self._errors():
            answer = self._transit.encrypt_data(
                self._key, _text(secret), mount_point=self._mount, associated_data=_text(use)
            )
        ciphertext = str(answer["data"]["ciphertext"])
        version = _WRAPPED.fullmatch(ciphertext)
        if version is None:
            raise RetriableRemoteStorageError(f"{self._what}: not a wrapped key of Vault")
        return WrappedKey(f"{self._key}/v{version[1]}", ciphertext.encode())

    def unwrap(self, wrapped: WrappedKey, use: bytes) -> bytes:
        ciphertext = wrapped.data.decode(errors="replace")
        name, _, version = wrapped.key_id.rpartition("/v")
        match = _WRAPPED.fullmatch(ciphertext)
        if KEY_ID.fullmatch(name) is None:
            raise UnknownKeyError(f"no key of {self._mount!r} in Vault has such a name")
        if match is None or match[1] != version:
            raise AlteredKeyError
        with self._errors(AlteredKeyError()):
            answer = self._transit.decrypt_data(
                name, ciphertext, mount_point=self._mount, associated_data=_text(use)
            )
        return base64.b64decode(answer["data"]["plaintext"])

    def status(self) -> RingStatus:
        with self._errors():
            key = self._transit.read_key(self._key, mount_point=self._mount)["data"]
        least = int(key["min_decryption_version"])
        versions = sorted(int(each) for each in key["keys"] if int(each) >= least)
        ids = [f"{self._key}/v{version}" for version in versions]
        return RingStatus(f"{self._key}/v{key['latest_version']}", ids)

    @property
    def _transit(self) -> "hvac.api.secrets_engines.Transit":
        try:
            self._vault.token = read_secret(self._token_file)
        except SecretFileError as e:
            raise StoreAccessDeniedError(f"{self._what}: token_file: {e}") from None
        return self._vault.secrets.transit

    @contextmanager
    def _errors(self, refused: Exception | None = None) -> Iterator[None]:
        """Translate the errors of Vault; none has a secret in it.

        `refused`: what a request means that Vault refuses for another reason than the key.
        """
        try:
            yield
        except (Forbidden, Unauthorized) as e:
            raise StoreAccessDeniedError(f"{self._what}: Vault refuses the token: {e}") from None
        except InvalidPath:
            raise UnknownKeyError(f"{self._what}: there is none") from None
        except InvalidRequest as e:
            if any(text in str(e) for text in _OF_A_KEY):
                raise UnknownKeyError(f"{self._what}: {e}") from None
            raise refused or UnknownKeyError(f"{self._what}: {e}") from None
        except (VaultError, OSError) as e:
            text = f"{self._what}: unreachable or not ready: {type(e).__name__}"
            raise RetriableRemoteStorageError(text) from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
