"""Reach GCS and Azure through Squid, which asks for credentials."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.api.errors import RetriableRemoteStorageError, StoreAccessDeniedError
from services.local.data_directory import write_secret
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from tests.harness.eventually import eventually
from tests.harness.squid import CREDENTIALS, squid
from tests.stores.conftest import StoreSettings

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def proxy(server_directory: Path) -> Iterator[tuple[str, Path]]:
    with squid(server_directory / "squid-of-stores") as running:
        yield running


@pytest.fixture
def through(
    proxy: tuple[str, Path], store_settings: StoreSettings, tmp_path: Path
) -> Callable[[str], StorageBackend]:
    """Return what opens the store through the proxy with these credentials."""

    def opened(credentials: str) -> StorageBackend:
        settings = store_settings()
        assert settings.locations_file is not None
        file = write_secret(tmp_path / "credentials", credentials)
        properties = f'proxy = "{proxy[0]}"\nproxy_credentials_file = "{file}"\n[location.options]'
        registry = settings.locations_file.read_text()
        settings.locations_file.write_text(registry.replace("[location.options]", properties))
        return build_backend(settings)

    return opened


def test_objects_are_written_and_read_through_the_proxy(
    proxy: tuple[str, Path], through: Callable[[str], StorageBackend]
) -> None:
    backend = through(CREDENTIALS)
    backend.put("behind/squid", b"0123456789")
    assert b"".join(backend.fetch("behind/squid", 2, 4)) == b"234"
    assert backend.delete(["behind/squid"]) == {}
    eventually(lambda: "squid sediment " in proxy[1].read_text())


def test_credentials_that_the_proxy_refuses_are_named(
    through: Callable[[str], StorageBackend],
) -> None:
    backend = through("sediment:wrong@:/")
    with pytest.raises(StoreAccessDeniedError, match="proxy_credentials_file") as caught:
        backend.describe("a-key")
    assert not isinstance(caught.value, RetriableRemoteStorageError)
    assert "wrong" not in str(caught.value)
