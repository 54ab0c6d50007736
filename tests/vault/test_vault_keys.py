"""Test keys in the transit engine of a real Vault, here of an OpenBao (make test-vault)."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import hvac
import pytest

from services.api.errors import (
    CorruptSegmentError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
)
from services.rsm.keys import KeyRing, KeyUse, WrappedKey
from services.rsm.vault_keys import VaultKeys
from tests.harness.eventually import eventually
from tests.harness.local_servers import free_ports

USE = KeyUse("here", uuid4(), 0, uuid4(), "00" * 8)
ANOTHER = KeyUse("here", uuid4(), 0, uuid4(), "00" * 8)


@dataclass
class Vault:
    """A Vault with a key, its root's client, and the file with its token."""

    address: str
    root: hvac.Client
    token: Path

    def keys(self, key: str = "tier", mount: str = "transit") -> VaultKeys:
        return VaultKeys(self.address, mount, key, self.token)


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [os.environ["TEST_BAO"], "server", "-dev", "-dev-root-token-id=root"]
    with subprocess.Popen(
        [*command, f"-dev-listen-address={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path)},
    ) as server:
        try:
            root = hvac.Client(f"http://{address}", token="root")
            eventually(lambda: is_up(root))
            root.sys.enable_secrets_engine("transit")
            root.secrets.transit.create_key("tier")
            (tmp_path / "token").write_text("root")
            yield Vault(f"http://{address}", root, tmp_path / "token")
        finally:
            server.kill()


def is_up(root: hvac.Client) -> bool:
    try:
        return bool(root.sys.is_initialized())
    except OSError:
        return False


def test_a_data_key_is_unwrapped_for_its_use_alone(vault: Vault) -> None:
    key = KeyRing(vault.keys(), "here").new_key(USE)
    assert key.wrapped.key_id == "tier/v1"
    ring = KeyRing(vault.keys(), "here")
    assert ring.data_key(key.wrapped, USE, "it").secret == key.secret
    data = key.wrapped.data
    for wrapped, use in (
        (key.wrapped, ANOTHER),
        (WrappedKey("tier/v1", data[:-6] + b"AAAA=="), USE),
        (WrappedKey("tier/v1", data[:20]), USE),
        (WrappedKey("tier/v2", data), USE),
    ):
        with pytest.raises(CorruptSegmentError, match="wrapped key fails its authentication"):
            ring.data_key(wrapped, use, "it")


def test_the_key_is_rotated_in_the_vault_and_an_old_version_destroyed(vault: Vault) -> None:
    ring = KeyRing(vault.keys(), "here")
    key = ring.new_key(USE)
    vault.root.secrets.transit.rotate_key("tier")
    assert (ring.status().current, list(ring.status().ids)) == ("tier/v2", ["tier/v1", "tier/v2"])
    rewrapped = ring.rewrapped(key.wrapped, USE, "it")
    assert rewrapped.key_id == "tier/v2"
    vault.root.secrets.transit.update_key_configuration("tier", min_decryption_version=2)
    later = KeyRing(vault.keys(), "here")
    assert later.data_key(rewrapped, USE, "it").secret == key.secret
    with pytest.raises(StoreAccessDeniedError, match=r"it: needs key 'tier/v1'.*disallowed"):
        later.data_key(key.wrapped, USE, "it")
    assert list(later.status().ids) == ["tier/v2"]


def test_a_key_or_a_mount_that_is_unknown_is_named(vault: Vault) -> None:
    wrapped = vault.keys().wrap(b"0" * 32, b"use")
    ring = KeyRing(vault.keys(mount="elsewhere"), "here")
    with pytest.raises(StoreAccessDeniedError, match="'elsewhere'"):
        ring.data_key(wrapped, USE, "it")
    with pytest.raises(StoreAccessDeniedError, match="needs key 'none/v1'"):
        ring.data_key(WrappedKey("none/v1", wrapped.data), USE, "it")


def test_a_key_that_cannot_bind_a_use_is_refused_by_name(vault: Vault) -> None:
    vault.root.secrets.transit.create_key("pair", key_type="rsa-2048")
    ring = KeyRing(vault.keys("pair"), "here")
    with pytest.raises(StoreAccessDeniedError, match="current key cannot be used: key 'pair'"):
        ring.new_key(USE)


def test_a_vault_that_refuses_or_is_away_fails_copies_and_serves_what_is_cached(
    vault: Vault,
) -> None:
    ring = KeyRing(vault.keys(), "here")
    key = ring.new_key(USE)
    vault.token.write_text("another")
    with pytest.raises(StoreAccessDeniedError, match="Vault refuses the token"):
        ring.new_key(USE)
    vault.token.write_text("root")
    assert ring.new_key(ANOTHER).wrapped.key_id == "tier/v1"
    vault.root.sys.seal()
    with pytest.raises(RetriableRemoteStorageError, match="not ready: VaultDown"):
        ring.new_key(USE)
    assert ring.data_key(key.wrapped, USE, "it").secret == key.secret
    with pytest.raises(RetriableRemoteStorageError, match="not ready"):
        KeyRing(vault.keys(), "here").data_key(key.wrapped, USE, "it")
