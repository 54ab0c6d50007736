"""Test clients with a token file: the token port, and tokens that are renewed in their file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.errors import RemoteStorageError, UnauthenticatedError
from services.api.roles import Role
from services.api.segment_objects import ObjectQuery
from services.common.client_security import ClientSecurity
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import SegmentObjectsClient
from services.rpc.server.server import Ports
from tests.harness.certificates import account
from tests.harness.eventually import eventually
from tests.harness.secured import Deployment, serving_rsm

JOB = account("jobs", "sweep")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "tls")
    made.grant(JOB, Role.SWEEPER)
    return made


@pytest.fixture
def ports(deployment: Deployment, tmp_path: Path) -> Iterator[Ports]:
    with serving_rsm(deployment.settings(), tmp_path / "objects") as ports:
        yield ports


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "token"


def test_a_renewed_token_is_read_from_its_file(
    deployment: Deployment, ports: Ports, token_file: Path
) -> None:
    token_file.write_text(deployment.issuer.token(JOB, exp=1))
    security = ClientSecurity(deployment.authority.certificate, token=token_file)
    with open_channel(ports.tokens, security) as channel:
        objects = SegmentObjectsClient(channel, ports.tokens)
        with pytest.raises(UnauthenticatedError):
            objects.list_segment_objects(ObjectQuery())

        token_file.write_text(deployment.issuer.token(JOB))

        def is_served() -> bool:
            try:
                objects.list_segment_objects(ObjectQuery())
            except UnauthenticatedError:
                return False
            return True

        eventually(is_served, poll_ms=200)


def test_a_token_that_is_gone_is_sent_until_it_ends(
    deployment: Deployment, ports: Ports, token_file: Path
) -> None:
    token_file.write_text(deployment.issuer.token(JOB))
    security = ClientSecurity(deployment.authority.certificate, token=token_file)
    with open_channel(ports.tokens, security) as channel:
        objects = SegmentObjectsClient(channel, ports.tokens)
        objects.list_segment_objects(ObjectQuery())
        token_file.unlink()
        objects.list_segment_objects(ObjectQuery())


@pytest.mark.parametrize("content", [None, "", "two\nlines", "\x00"])
def test_a_file_without_a_token_is_named(
    deployment: Deployment, ports: Ports, token_file: Path, content: str | None
) -> None:
    if content is not None:
        token_file.write_text(content)
    security = ClientSecurity(deployment.authority.certificate, token=token_file)
    with pytest.raises(RemoteStorageError, match=f"^token file {token_file}: "):
        open_channel(ports.tokens, security)


def test_a_token_does_not_open_the_port_for_certificates(
    deployment: Deployment, ports: Ports, token_file: Path
) -> None:
    token_file.write_text(deployment.issuer.token(JOB))
    security = ClientSecurity(deployment.authority.certificate, token=token_file)
    with (
        open_channel(ports.address, security) as channel,
        pytest.raises(RemoteStorageError, match=f"files of this client: CA .*, token {token_file}"),
    ):
        SegmentObjectsClient(channel, ports.address).list_segment_objects(ObjectQuery())
