"""Reach an S3 store through a real forward proxy, Squid, that asks for credentials."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.local.certificates import CertificateAuthority
from services.local.data_directory import write_secret
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, fetched, some_bytes
from tests.contract.rsm_over_s3 import PART, settings_for, with_properties
from tests.harness.eventually import eventually
from tests.harness.nginx import nginx
from tests.harness.squid import CREDENTIALS, squid

Through = Callable[[str], AbstractContextManager[RsmSettings]]


@pytest.fixture(scope="module")
def proxy(server_directory: Path) -> Iterator[tuple[str, Path]]:
    with squid(server_directory / "squid") as running:
        yield running


@pytest.fixture(params=["http", "https"])
def through(
    request: pytest.FixtureRequest,
    proxy: tuple[str, Path],
    s3: S3Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Through:
    """Return what serves the store, in plaintext or with TLS, to RSM with these credentials."""

    @contextmanager
    def serve(credentials: str) -> Iterator[RsmSettings]:
        plain = settings_for(s3)
        file = write_secret(tmp_path / "credentials", credentials)
        properties = f'proxy = "{proxy[0]}"\nproxy_credentials_file = "{file}"'
        if request.param == "http":
            yield with_properties(plain, tmp_path, properties)
            return
        authority = CertificateAuthority(tmp_path / "certificates")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        with nginx(tmp_path / "nginx", s3.endpoint, "100m", tls=authority.issue("s")) as address:
            secure = plain.model_copy(update={"endpoint": address, "secure": True})
            yield with_properties(secure, tmp_path, properties)

    return serve


def test_segments_are_copied_and_read_through_the_proxy(
    proxy: tuple[str, Path], through: Through
) -> None:
    log = some_bytes(2 * PART + 7)
    with through(CREDENTIALS) as settings, closing(build_manager(settings)) as manager:
        manager.check()
        segment = copied(manager, Files(log))
        assert fetched(manager, segment) == log
        assert fetched(manager, segment, PART - 5, PART + 5) == log[PART - 5 : PART + 6]
        manager.delete_log_segment_data(segment)

    def requests() -> set[tuple[str, str]]:
        """Return the requests to this store that Squid has let through, logged at their end."""
        seen = re.findall(r"/20\d \d+ (\w+) (\S+) sediment ", proxy[1].read_text())
        return {(method, target) for method, target in seen if settings.endpoint in target}

    methods, targets = zip(*eventually(requests), strict=True)
    if settings.secure:
        assert {*methods, *targets} == {"CONNECT", settings.endpoint}
    else:
        assert {*methods} == {"DELETE", "GET", "POST", "PUT"}
        assert all(each.startswith(f"http://{settings.endpoint}/") for each in targets)


@pytest.mark.parametrize("credentials", ["sediment:wrong", "nobody:of-the-proxy"])
def test_credentials_that_the_proxy_refuses_are_named(through: Through, credentials: str) -> None:
    with through(credentials) as settings, closing(build_manager(settings)) as manager:
        with pytest.raises(RemoteStorageError, match="proxy_credentials_file") as caught:
            manager.check()
        assert not isinstance(caught.value, RetriableRemoteStorageError)
        with pytest.raises(RemoteStorageError, match="proxy_credentials_file"):
            copied(manager, Files(b"log"))
    assert credentials.partition(":")[2] not in str(caught.value)
