"""Do what docs/run/security.md says, and hold those of its claims that have no test elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hatch_build import ROOT
from services.api.errors import (
    CorruptSegmentError,
    PermissionDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.segment_objects import ObjectQuery
from services.common.client_security import ClientSecurity
from services.common.settings import ServiceSettings
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import SegmentObjectsClient
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, fetched
from tests.harness.secured import serving_rsm

pytestmark = pytest.mark.deep

PAGE = (ROOT / "docs/run/security.md").read_text()
COMMANDS = re.search(r"```sh\n(openssl .*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the commands of the page."""
    assert COMMANDS is not None
    if shutil.which("openssl") is None:
        pytest.skip("the commands of the page need openssl")
    directory = tmp_path_factory.mktemp("by-the-page")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-e", "-u", "-c", COMMANDS[1]],
        cwd=directory,
        env={**os.environ, "PATH": path},
        check=True,
        capture_output=True,
        timeout=120,
    )
    return directory


def files(made: Path, name: str) -> ClientSecurity:
    return ClientSecurity(made / "ca.crt", made / f"{name}.crt", made / f"{name}.key")


def settings(made: Path, name: str) -> ServiceSettings:
    return ServiceSettings(
        tls_certificate_file=made / f"{name}.crt",
        tls_key_file=made / f"{name}.key",
        tls_client_ca_file=made / "ca.crt",
        policy_file=made / "policy.toml",
        drain_timeout_ms=1_000,
    )


@contextmanager
def objects_of(address: str, security: ClientSecurity) -> Iterator[SegmentObjectsClient]:
    # The certificate names localhost, not the address.
    named = f"localhost:{address.rpartition(':')[2]}"
    with open_channel(named, security) as channel:
        yield SegmentObjectsClient(channel, named)


def test_the_commands_of_the_page_secure_a_service(made: Path, tmp_path: Path) -> None:
    with serving_rsm(settings(made, "rsm"), tmp_path / "objects") as ports:
        with objects_of(ports.address, files(made, "oncall")) as objects:
            assert objects.list_segment_objects(ObjectQuery()).objects == ()
        with (
            objects_of(ports.address, files(made, "broker-1")) as objects,
            pytest.raises(PermissionDeniedError, match=r"broker-1 may not call .*sweeper"),
        ):
            objects.list_segment_objects(ObjectQuery())
    # A client's certificate is none for a service, even if it names the host.
    with (
        serving_rsm(settings(made, "broker-1"), tmp_path / "posing") as ports,
        objects_of(ports.address, files(made, "oncall")) as objects,
        pytest.raises(
            RetriableRemoteStorageError,
            match="certificate is not one for a server; files of this client: CA ",
        ),
    ):
        objects.list_segment_objects(ObjectQuery())


def test_custom_metadata_lead_to_no_other_segment(tmp_path: Path) -> None:
    settings = RsmSettings(backend="filesystem", directory=tmp_path)
    with closing(build_manager(settings)) as manager:
        mine, others = (copied(manager, Files(text)) for text in (b"my own bytes", b"secret bytes"))
        posing = replace(mine, custom_metadata=others.custom_metadata)
        with pytest.raises((RemoteResourceNotFoundError, CorruptSegmentError)):
            fetched(manager, posing)
        assert fetched(manager, mine) == b"my own bytes"
