"""The three services as processes: settings, what they need and when it is away, their end."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from signal import SIGTERM
from threading import Event
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from pydantic import ValidationError
from sqlalchemy import make_url

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.remote_log_manager import IsolationLevel
from services.api.remote_storage_manager import IndexType, LogSegmentData, SegmentChunk
from services.api.segments import RemoteLogSegmentState
from services.common.client_security import PLAINTEXT
from services.common.settings import ServiceSettings
from services.local.process import LOOPBACK, ChildProcess
from services.local.seaweedfs import S3Endpoint, SeaweedFS
from services.local.stack import (
    listen_settings,
    one_process,
    own_environment,
    rlm_settings,
    rlmm_settings,
    rsm_settings,
    transport_settings,
)
from services.rlmm.database import schema, schema_revision
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.layout import CustomMetadata
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    a_segment,
    copied,
    fetched,
)
from tests.harness.broker_answers import broker_answers
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.every_rpc import RPCS
from tests.harness.faults import BlackHole
from tests.harness.http_proxy import HttpProxy
from tests.harness.local_servers import free_ports, remove_bucket
from tests.harness.own_servers import own_ports, own_s3
from tests.harness.proxy import TcpProxy
from tests.harness.ship_stack import BUNDLED, bundled_name

__all__ = ["own_s3"]
FULL_NAMES = {
    "rsm": "tieredstorage.v1.RemoteStorageManager",
    "rlmm": "tieredstorage.v1.RemoteLogMetadataManager",
    "rlm": "tieredstorage.v1.RemoteLogManager",
}
SECRET = "hunter2-of-the-operator"
NOBODY = f"{LOOPBACK}:1"
S3_SETTINGS = rsm_settings(S3Endpoint(NOBODY, "key", SECRET), "segments", "")
DATABASE = {"RLMM_DATABASE_URL": f"postgresql://sediment:{SECRET}@{NOBODY}/tier"}
ADDRESSES = {"RLM_RSM_ADDRESS": NOBODY, "RLM_RLMM_ADDRESS": NOBODY}
SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
A_PART = 5 * MIB

# How many times longer a busy machine may take.
BUSY = 3


@dataclass(frozen=True)
class Running:
    """A service that need not be ready."""

    process: ChildProcess
    address: str
    health: str
    metrics: str

    def status(self, service: str = "") -> int:
        # A service may start late: gRPC would wait longer and longer between its attempts.
        options = [("grpc.max_reconnect_backoff_ms", 500)]
        with grpc.insecure_channel(self.health, options) as channel:
            request = HealthCheckRequest(service=service)
            stub = HealthStub(channel)
            return int(stub.Check(request, timeout=60, wait_for_ready=True).status)

    def log(self) -> str:
        return self.process.log_path.read_text()

    def wait_until(self, status: int) -> None:
        eventually(lambda: self.status() == status, deadline_ms=60_000)

    def page(self) -> str:
        with urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            return str(answer.read(), "utf-8")


@contextmanager
def started(name: str, settings: Mapping[str, str], directory: Path) -> Iterator[Running]:
    directory.mkdir(exist_ok=True)
    ports = free_ports(3, own_ports())
    settings = {**one_process(name), **settings, **listen_settings(name, ports, LOOPBACK)}
    environment = own_environment({**settings, **transport_settings(name, settings)})
    command = [sys.executable, "-m", f"services.{name}"]
    process = ChildProcess(name, command, directory, environment)
    process.start()
    try:
        yield Running(process, *(f"{LOOPBACK}:{port}" for port in ports))
    finally:
        process.kill()


def files_settings(directory: Path) -> dict[str, str]:
    directory.mkdir(exist_ok=True)
    return {
        "RSM_BACKEND": "filesystem",
        "RSM_DIRECTORY": str(directory),
        "RSM_PART_SIZE_BYTES": str(A_PART),
    }


# Settings


def last_words(name: str, settings: Mapping[str, str]) -> list[str]:
    """What a service that will not start says; no secret."""
    command = [sys.executable, "-m", f"services.{name}"]
    done = subprocess.run(
        command,
        env=own_environment(
            {**one_process(name), **settings, **transport_settings(name, settings)}
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert SECRET not in done.stderr
    return [line for line in done.stderr.splitlines() if "serving without TLS" not in line]


def test_a_service_without_tls_and_without_the_choice_of_plaintext_names_both() -> None:
    settings = {"RLMM_DATABASE_URL": "postgresql://db", "RLMM_PLAINTEXT": "false"}
    assert refusal("rlmm", settings) == (
        "no TLS: set RLMM_TLS_CERTIFICATE_FILE, RLMM_TLS_KEY_FILE, RLMM_TLS_CLIENT_CA_FILE and "
        "RLMM_POLICY_FILE, or RLMM_PLAINTEXT=true to serve everyone who reaches the port "
        "(docs/run/security.md)"
    )


def refusal(name: str, settings: Mapping[str, str]) -> str:
    (line,) = last_words(name, settings)
    return line


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("rsm", {}, "RSM_BACKEND: is required"),
        ("rsm", {**S3_SETTINGS, "RSM_BUCKET": ""}, "RSM_BACKEND=s3 also needs RSM_BUCKET"),
        (
            "rsm",
            {**S3_SETTINGS, "RSM_SECRET_KEYS": SECRET},
            "unknown setting: RSM_SECRET_KEYS (did you mean RSM_SECRET_KEY?); remove or correct it",
        ),
        ("rlmm", {**DATABASE, "RLMM_DATABASE_POOL_SIZE": "0"}, "RLMM_DATABASE_POOL_SIZE: "),
        (
            "rlm",
            {**ADDRESSES, "RLM_RSM_ADDRESS": "localhost"},
            "RLM_RSM_ADDRESS: 'localhost' is not HOST:PORT",
        ),
        (
            "rlm",
            {**ADDRESSES, "RLM_RSM_ADDRESS": "rsm-0:1,rsm-1:1"},
            "RLM_RSM_ADDRESS: 'rsm-0:1,rsm-1:1' names several servers; write ipv4:rsm-0:1,rsm-1:1",
        ),
        ("rlm", {**ADDRESSES, "RLM_LOG_DIRS": "/gone"}, "RLM_LOG_DIRS: /gone: no such directory"),
        (
            "rlm",
            {
                **ADDRESSES,
                "RLM_LOG_DIRS": str(BUNDLED),
                "RLM_PARTITION_SOURCE": "poller",
                "RLM_BOOTSTRAP_SERVERS": "kafka:9093",
                "RLM_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "RLM_KAFKA_SASL_MECHANISM": "PLAIN",
                "RLM_KAFKA_USERNAME": "rlm",
                "RLM_KAFKA_PASSWORD_FILE": "/gone",
            },
            "RLM_KAFKA_PASSWORD_FILE: /gone: cannot be read: No such file or directory",
        ),
    ],
)
def test_a_setting_that_is_wrong_is_named(
    name: str, settings: Mapping[str, str], named: str
) -> None:
    assert refusal(name, settings).startswith(named)


@pytest.mark.parametrize("value", ["9000", "localhost", "localhost:99999", "http://localhost:1"])
def test_an_address_has_a_host_and_a_port(value: str) -> None:
    with pytest.raises(ValidationError, match="is not HOST:PORT"):
        ServiceSettings(plaintext=True, listen_address=value)


@pytest.mark.parametrize("value", ["localhost:0", "0.0.0.0:65535", "[::]:9000", "rsm.tier.svc:1"])
def test_an_address_may_be_a_name_or_a_number(value: str) -> None:
    assert ServiceSettings(plaintext=True, listen_address=value).listen_address == value


@pytest.mark.parametrize("value", [SECRET, f"postgresql://u:{SECRET}@h:x/d"])
def test_a_database_url_that_is_none_is_named_without_its_password(value: str) -> None:
    line = refusal("rlmm", {"RLMM_DATABASE_URL": value})
    assert line.startswith("RLMM_DATABASE_URL: database_url: not a URL; write postgresql://")


@pytest.mark.parametrize("port", ["LISTEN", "HEALTH", "METRICS", "CONSUMER_LISTEN"])
def test_an_address_in_use_is_named(port: str) -> None:
    with TcpProxy(NOBODY) as somebody:
        lines = last_words("rlm", {**ADDRESSES, f"RLM_{port}_ADDRESS": somebody.address})
    assert lines[-1].startswith(f"cannot listen on {somebody.address}")  # gRPC has its say before
    assert "Traceback" not in str(lines)


def test_rlm_serves_consumers_by_its_settings_without_store_and_database(tmp_path: Path) -> None:
    settings = {
        **ADDRESSES,
        "RLM_LOG_DIRS": str(BUNDLED),
        "RLM_CONSUMER_LISTEN_ADDRESS": f"{LOOPBACK}:0",
        "RLM_CONSUMER_ADVERTISED_ADDRESS": "rlm.example:9192",
    }
    with started("rlm", settings, tmp_path / "rlm") as rlm:
        (address,) = eventually(
            lambda: re.findall(r"serving consumers on (\S+), as rlm.example:9192", rlm.log()),
            deadline_ms=60_000,
        )
        payments = bundled_name("payments")
        with broker_answers(address) as consumer:
            found = consumer.fetch(payments, 0, 1, IsolationLevel.READ_UNCOMMITTED)
            assert (found.error, found.high_watermark) == (0, 504)
        rlm.process.stop()
    assert "Traceback" not in rlm.log()


# What a service needs


def assert_becomes_ready(
    service: Running, bring_back: Callable[[], object], *named: str, name: str
) -> None:
    """It says what is away, stays alive, and is ready once that is back."""
    eventually(lambda: all(text in service.log() for text in named), deadline_ms=20_000)
    assert (service.status(), service.status(FULL_NAMES[name])) == (NOT_SERVING, NOT_SERVING)
    assert service.status("liveness") == SERVING
    bring_back()
    service.wait_until(SERVING)
    assert service.status(FULL_NAMES[name]) == SERVING
    assert "Traceback" not in service.log()


@pytest.fixture
def store(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint) as proxy:
        yield proxy


def test_rsm_waits_for_its_store(
    s3: S3Endpoint, store: HttpProxy, bucket: str, tmp_path: Path
) -> None:
    settings = rsm_settings(replace(s3, endpoint=store.address), bucket, "")
    store.refuse_connections()
    with started("rsm", {**settings, "RSM_RETRIES": "0"}, tmp_path) as rsm:
        named = ("not ready", bucket, store.address)
        eventually(lambda: all(text in rsm.log() for text in named), deadline_ms=20_000)
        # Its port opens once it has waited for a while.
        eventually_holds(lambda: assert_not_served_yet(rsm.address), deadline_ms=60_000)
        assert_becomes_ready(rsm, store.accept_connections, *named, name="rsm")
        store.refuse_connections()
        store.cut_connections()
        rsm.wait_until(NOT_SERVING)
        store.accept_connections()
        rsm.wait_until(SERVING)
        assert rsm.status("liveness") == SERVING


def test_readiness_follows_a_store_that_is_killed_and_started_again(
    own_s3: SeaweedFS, tmp_path: Path
) -> None:
    """NOT_SERVING within 10 s of its loss, SERVING within 3 s of its return, as deployed."""
    own_s3.endpoint.ensure_bucket("watched")
    settings = rsm_settings(own_s3.endpoint, "watched", "", "ours")
    with started("rsm", settings, tmp_path) as rsm:
        rsm.wait_until(SERVING)
        own_s3.kill()
        lost_s = time.monotonic()
        rsm.wait_until(NOT_SERVING)
        noticed_s = time.monotonic() - lost_s
        own_s3.start()
        back_s = time.monotonic()
        rsm.wait_until(SERVING)
        served_s = time.monotonic() - back_s
        assert rsm.log().count("probed the store") == 1
    times = (
        f"NOT_SERVING {noticed_s:.1f} s after the loss, SERVING {served_s:.1f} s after the return"
    )
    sys.stdout.write(f"{times}\n")
    assert noticed_s < BUSY * 10, times
    assert served_s < BUSY * 3, times


def assert_not_served_yet(address: str) -> None:
    """No deployment id is set, so that no marker is waited for; what the store can do is."""
    with (
        open_channel(address, PLAINTEXT) as channel,
        pytest.raises(RetriableRemoteStorageError, match="RSM is not ready: its store"),
    ):
        copied(RemoteStorageManagerClient(channel, address), Files(b"log"))


def test_rsm_waits_for_its_bucket(s3: S3Endpoint, tmp_path: Path) -> None:
    name = f"late-{tmp_path.name.replace('_', '-').lower()}"[:60].strip("-")
    settings = {**rsm_settings(s3, name, ""), "RSM_RETRIES": "0"}
    with started("rsm", settings, tmp_path) as rsm:
        missing = f"{name!r} at {s3.endpoint}: the object store answered 404 NoSuchBucket"
        assert_becomes_ready(rsm, lambda: s3.ensure_bucket(name), missing, name="rsm")
    remove_bucket(s3, name)


def test_rlmm_waits_for_its_database(database_url: str, tmp_path: Path) -> None:
    url = make_url(database_url)
    with TcpProxy(f"{url.host}:{url.port}") as proxy:
        host, _, port = proxy.address.rpartition(":")
        settings = rlmm_settings(
            url.set(host=host, port=int(port)).render_as_string(hide_password=False)
        )
        proxy.refuse_connections()
        with started("rlmm", settings, tmp_path) as rlmm:
            where = f"{proxy.address}/{url.database}"
            assert_becomes_ready(rlmm, proxy.accept_connections, where, name="rlmm")
            proxy.refuse_connections()
            proxy.cut_connections()
            rlmm.wait_until(NOT_SERVING)
            proxy.accept_connections()
            rlmm.wait_until(SERVING)
            assert rlmm.status("liveness") == SERVING
            assert str(url.password) not in rlmm.log()


def test_rlmm_waits_for_its_schema(empty_database_url: str, tmp_path: Path) -> None:
    with started("rlmm", rlmm_settings(empty_database_url), tmp_path) as rlmm:
        named = (schema_revision.known_revision(), "sediment db upgrade")
        upgrade = partial(schema.upgrade, empty_database_url)
        assert_becomes_ready(rlmm, upgrade, *named, name="rlmm")


def test_rlm_is_ready_without_the_others(tmp_path: Path) -> None:
    with started("rlm", rlm_settings(NOBODY, NOBODY, [], None), tmp_path) as rlm:
        rlm.wait_until(SERVING)


# What every service process serves


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, server_directory: Path
) -> Iterator[dict[str, Running]]:
    """All three, with as little behind them as they can do with."""
    directory = tmp_path_factory.mktemp("services")
    settings = {
        "rsm": files_settings(directory / "objects"),
        "rlmm": DATABASE,
        "rlm": rlm_settings(NOBODY, NOBODY, [], None),
    }
    with ExitStack() as cleanup:
        yield {
            name: cleanup.enter_context(started(name, settings[name], directory))
            for name in settings
        }


@pytest.mark.parametrize("name", FULL_NAMES)
def test_reflection_lists_the_service(services: dict[str, Running], name: str) -> None:
    with grpc.insecure_channel(services[name].address) as channel:
        # Health answers before the service listens.
        grpc.channel_ready_future(channel).result(timeout=60)
        listed = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert FULL_NAMES[name] in listed


@pytest.mark.parametrize("name", FULL_NAMES)
def test_the_health_port_serves_nothing_else(services: dict[str, Running], name: str) -> None:
    with grpc.insecure_channel(services[name].health) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        for rpc in RPCS:
            with pytest.raises(grpc.RpcError) as caught:
                rpc.call(channel, rpc.message("orders"))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, rpc.rule
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            ProtoReflectionDescriptorDatabase(channel).get_services()


def test_calls_are_measured_by_method_and_status(services: dict[str, Running]) -> None:
    rsm = services["rsm"]
    rsm.wait_until(SERVING)
    with open_channel(rsm.address, PLAINTEXT) as channel:
        client = RemoteStorageManagerClient(channel, rsm.address)
        client.delete_log_segment_data(a_segment())
        with pytest.raises(RemoteStorageError):
            fetched(client, a_segment(size=1))
    page = rsm.page()
    method = 'method="/tieredstorage.v1.RemoteStorageManager'
    assert f'sediment_rpc_seconds_count{{code="OK",{method}/DeleteLogSegmentData"}} 1.0' in page
    assert f'sediment_rpc_seconds_count{{code="NOT_FOUND",{method}/FetchLogSegment"}} 1.0' in page


# The end


def test_a_copy_in_progress_ends_well_after_sigterm(tmp_path: Path) -> None:
    """Meanwhile new calls are refused, readiness says no and liveness yes."""
    objects = tmp_path / "objects"
    files = Files(os.urandom(2 * A_PART))
    metadata = a_segment(len(files.log))
    patient = {"RSM_DRAIN_TIMEOUT_MS": "60000"}  # a busy machine takes its time
    go_on = Event()

    def slowly() -> Iterator[SegmentChunk]:
        for number, chunk in enumerate(files.chunks()):
            if number == 7:
                assert go_on.wait(60)
            yield chunk

    with (
        started("rsm", {**files_settings(objects), **patient}, tmp_path) as rsm,
        open_channel(rsm.address, PLAINTEXT) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        rsm.wait_until(SERVING)
        client = RemoteStorageManagerClient(channel, rsm.address)
        data = LogSegmentData(files.headers(), slowly())
        copy = pool.submit(client.copy_log_segment_data, metadata, data)
        eventually(lambda: any(path.is_file() for path in objects.rglob("*")))
        os.kill(rsm.process.pid, SIGTERM)
        rsm.wait_until(NOT_SERVING)
        eventually(lambda: is_refused(rsm.address))
        assert rsm.status("liveness") == SERVING
        go_on.set()
        finished = replace(
            metadata,
            custom_metadata=copy.result(30),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )
        eventually(lambda: not rsm.process.is_running())
        assert rsm.process.returncode == 0
    with (
        started("rsm", files_settings(objects), tmp_path) as rsm,
        open_channel(rsm.address, PLAINTEXT) as channel,
    ):
        rsm.wait_until(SERVING)
        assert fetched(RemoteStorageManagerClient(channel, rsm.address), finished) == files.log


def test_a_copy_that_waits_for_its_turn_ends_after_the_drain(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    slow = {"RSM_UPLOAD_RATE_BYTES_PER_S": "1000", "RSM_DRAIN_TIMEOUT_MS": "500"}
    files = Files(os.urandom(2 * A_PART))
    with (
        started("rsm", {**files_settings(objects), **slow}, tmp_path) as rsm,
        open_channel(rsm.address, PLAINTEXT) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        rsm.wait_until(SERVING)
        client = RemoteStorageManagerClient(channel, rsm.address)
        taken = Event()

        def reported() -> Iterator[SegmentChunk]:
            for number, chunk in enumerate(files.chunks()):
                if number == 2:
                    taken.set()
                yield chunk

        data = LogSegmentData(files.headers(), reported())
        copy = pool.submit(client.copy_log_segment_data, a_segment(len(files.log)), data)
        assert taken.wait(60)
        os.kill(rsm.process.pid, SIGTERM)
        eventually(lambda: not rsm.process.is_running(), deadline_ms=20_000)
        assert rsm.process.returncode == 0
        assert isinstance(copy.exception(30), RetriableRemoteStorageError)
    assert "Traceback" not in rsm.log()


def test_a_copy_that_the_drain_ends_removes_its_objects_ahead_of_other_deletes(
    tmp_path: Path,
) -> None:
    """A batch was deleted at a rate that holds the next one up for minutes."""
    objects = tmp_path / "objects"
    slow = {"RSM_DELETE_RATE_KEYS_PER_S": "1", "RSM_DRAIN_TIMEOUT_MS": "500"}
    gone = CustomMetadata(1, "00" * 8, 3, dict.fromkeys(IndexType, 0), bytes(16)).to_bytes()
    files = Files(b"log")
    *chunks, last_chunk = files.chunks()
    copy_has_ended = Event()

    def reported() -> Iterator[SegmentChunk]:
        yield from chunks
        assert copy_has_ended.wait(60)
        yield last_chunk

    with (
        started("rsm", {**files_settings(objects), **slow}, tmp_path) as rsm,
        open_channel(rsm.address, PLAINTEXT) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        rsm.wait_until(SERVING)
        client = RemoteStorageManagerClient(channel, rsm.address)
        client.delete_log_segment_data_batch(
            [replace(a_segment(), custom_metadata=gone) for _ in range(100)]
        )
        copy = pool.submit(
            client.copy_log_segment_data, a_segment(3), LogSegmentData(files.headers(), reported())
        )
        eventually(lambda: any(objects.rglob("*.log")), deadline_ms=60_000)
        os.kill(rsm.process.pid, SIGTERM)
        eventually(lambda: not rsm.process.is_running(), deadline_ms=60_000)
        copy_has_ended.set()
        assert rsm.process.returncode == 0
        assert isinstance(copy.exception(60), RetriableRemoteStorageError)
    assert not any(objects.rglob("*.log"))
    assert "in the store: " not in rsm.log()


def test_calls_at_a_silent_store_end_soon_after_the_drain(
    s3: S3Endpoint, store: HttpProxy, bucket: str, tmp_path: Path
) -> None:
    """With the request that is under way, and 10 s for what a copy takes back: ten repeats, as are
    set, would take half a minute."""
    settings = {
        **rsm_settings(replace(s3, endpoint=store.address), bucket, ""),
        "RSM_RETRIES": "10",
        "RSM_READ_TIMEOUT_MS": "2000",
        "RSM_DRAIN_TIMEOUT_MS": "500",
    }
    files = Files(b"log")
    with (
        started("rsm", settings, tmp_path) as rsm,
        open_channel(rsm.address, PLAINTEXT) as channel,
        ThreadPoolExecutor(2) as pool,
    ):
        rsm.wait_until(SERVING)
        client = RemoteStorageManagerClient(channel, rsm.address)
        metadata = copied(client, files)
        store.faults.add(BlackHole(), times=None)
        store.forget_requests()
        fetch = pool.submit(fetched, client, metadata)
        copy = pool.submit(copied, client, files)
        eventually(lambda: {"GET", "PUT"} <= {asked.split()[0] for asked in store.asked})
        os.kill(rsm.process.pid, SIGTERM)
        eventually(lambda: not rsm.process.is_running(), deadline_ms=20_000)
        assert rsm.process.returncode == 0
        assert isinstance(fetch.exception(30), RetriableRemoteStorageError)
        assert isinstance(copy.exception(30), RetriableRemoteStorageError)
    assert "Traceback" not in rsm.log()


def is_refused(address: str) -> bool:
    with open_channel(address, PLAINTEXT) as channel:
        try:
            RemoteStorageManagerClient(channel, address).delete_log_segment_data(a_segment())
        except RetriableRemoteStorageError:
            return True
        return False


@pytest.mark.parametrize("name", FULL_NAMES)
def test_an_idle_service_ends_well_at_sigterm(name: str, tmp_path: Path) -> None:
    settings = {
        "rsm": files_settings(tmp_path / "objects"),
        "rlmm": DATABASE,
        "rlm": ADDRESSES,
    }
    with started(name, settings[name], tmp_path) as service:
        service.status()
        service.process.stop()
        assert service.process.returncode == 0
        assert "Traceback" not in service.log()
