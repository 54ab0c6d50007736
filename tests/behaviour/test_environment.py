"""Check that no variable of the environment sends a client elsewhere than its setting."""

import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import grpc
import psycopg
import pytest
from sqlalchemy import text

from services.api.roles import Role
from services.common.open_telemetry import connect
from services.local.seaweedfs import S3Endpoint
from services.rlm.kafka_admin.client import connected
from services.rlm.kafka_admin.security import KafkaSecurity
from services.rlmm.database.engine import create_database_engine
from services.rlmm.servicer import add_to_server
from services.rpc.client.channel import open_channel
from services.rpc.client.direct import DirectReader
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import eventually
from tests.harness.local_servers import DatabaseServer
from tests.harness.recorders import Trap, collecting_traces, trap
from tests.harness.secured import Deployment, spiffe
from tests.harness.sediment_command import sediment
from tests.harness.served import served


@pytest.fixture
def trapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    """Every variable for proxies and AWS names a trap that nothing may reach."""
    with trap() as made:
        for name, value in {**made.proxies(), **of_aws(made)}.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def database_trap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trapped: Trap) -> Iterator[Trap]:
    """And every variable of libpq."""
    with monkeypatch.context() as changes:
        for name, value in trapped.of_libpq(tmp_path).items():
            changes.setenv(name, value)
        yield trapped


def of_aws(made: Trap) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://{made.address}",
        "AWS_ENDPOINT_URL_S3": f"http://{made.address}",
        "AWS_ENDPOINT_URL_STS": f"http://{made.address}",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{made.address}/role",
        "AWS_ACCESS_KEY_ID": "trap",
        "AWS_SECRET_ACCESS_KEY": "trap",
        "AWS_SESSION_TOKEN": "trap",
        "AWS_REGION": "eu-trap-1",
    }


@pytest.fixture
def in_bucket(s3: S3Endpoint, bucket: str) -> RsmSettings:
    return RsmSettings.model_validate(
        {
            "backend": "s3",
            "endpoint": s3.endpoint,
            "region": s3.region,
            "secure": s3.secure,
            "bucket": bucket,
            "access_key": s3.access_key,
            "secret_key": s3.secret_key,
            "direct_reads": True,
        }
    )


def ping(channel: grpc.Channel) -> None:
    channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)(b"", timeout=5)


def test_the_trap_catches_clients_that_follow_the_environment(database_trap: Trap) -> None:
    trapped = database_trap

    def grpc_client() -> None:
        with grpc.insecure_channel("127.0.0.1:9") as channel:
            ping(channel)

    def grpc_client_by_address() -> None:
        with grpc.insecure_channel("127.0.0.1:9", [("grpc.enable_http_proxy", 0)]) as channel:
            ping(channel)

    def libpq() -> None:
        psycopg.connect(host="127.0.0.1", connect_timeout=5)

    def http() -> None:
        # Not urlopen, whose opener would have this proxy in later tests as well.
        urllib.request.build_opener().open("http://127.0.0.1:9", timeout=5)

    def reached_after(before: int) -> bool:
        return trapped.reached > before

    for client in (grpc_client, grpc_client_by_address, libpq, http):
        before = trapped.reached
        with suppress(grpc.RpcError, psycopg.OperationalError, OSError):
            client()
        # The trap counts in a thread of its own.
        eventually(partial(reached_after, before))


def test_grpc_goes_to_its_address_in_plaintext_and_with_tls(
    trapped: Trap, rlmm: OwnRlmm, tmp_path: Path
) -> None:
    deployment = Deployment(tmp_path)
    deployment.grant(spiffe("reader"), Role.READER)

    name = "tieredstorage.v1.RemoteLogMetadataManager"
    with served(partial(add_to_server, rlmm), name) as (channel, address):
        assert RemoteLogMetadataManagerClient(channel, address).list_partitions().partitions == ()
        command = sediment("segments", "payments-0", "--rlmm", address)
        assert "the tier has no partition payments-0" in command.stderr
    with (
        deployment.served(partial(add_to_server, rlmm), name) as ports,
        open_channel(ports.address, deployment.client("reader")) as channel,
    ):
        client = RemoteLogMetadataManagerClient(channel, ports.address)
        assert client.list_partitions().partitions == ()
    assert trapped.reached == 0


def test_spans_go_to_their_collector(trapped: Trap) -> None:
    with collecting_traces() as collector:
        tracer, end = connect("rsm", "0", f"http://{collector.address}", 1.0)
        tracer.begin("an operation", None, {}, is_client=False).end({})
        end()
        assert [span.name for span in collector.spans] == ["an operation"]
    assert trapped.reached == 0


def test_the_store_is_that_of_the_settings(trapped: Trap, in_bucket: RsmSettings) -> None:
    files = Files(some_bytes(2_000))
    read: list[int] = []
    with (
        closing(build_manager(in_bucket)) as rsm,
        closing(DirectReader(rsm, read.append)) as direct,
    ):
        segment = copied(rsm, files)
        assert b"".join(rsm.fetch_log_segment(segment, 0)) == files.log
        assert b"".join(direct.fetch_log_segment(segment, 0, 1_999)) == files.log
    assert read == [2_000]
    assert trapped.reached == 0


def test_the_database_and_its_session_are_those_of_the_url(
    database_trap: Trap, database_url: str
) -> None:
    engine = create_database_engine(database_url)
    with engine.connect() as connection:
        found = [
            connection.execute(text(f"SHOW {name}")).scalar_one()
            for name in ("timezone", "datestyle", "statement_timeout", "client_encoding")
        ]
    engine.dispose()
    assert found[0] != "Asia/Tokyo"
    assert found[1:] == ["ISO, MDY", "20s", "UTF8"]
    assert database_trap.reached == 0


def test_the_embedded_database_is_that_of_this_stack(
    database_trap: Trap, postgres: DatabaseServer
) -> None:
    postgres.create_database("beside")
    postgres.drop_database("beside")
    assert database_trap.reached == 0


def test_brokers_are_those_of_the_settings(trapped: Trap) -> None:
    with trap() as broker:
        options = KafkaSecurity().connection_options()
        with connected(broker.address, options, 5):
            eventually(lambda: broker.reached == 1)
    assert trapped.reached == 0
