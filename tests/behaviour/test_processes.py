"""Run RSM and RLMM in two processes behind one port: calls, health, metrics, ends and restarts."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from urllib.request import urlopen
from uuid import uuid4

import grpc
import psutil
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client.parser import text_string_to_metric_families

from services.api.errors import UnauthenticatedError
from services.api.ids import TopicIdPartition
from services.api.roles import Role
from services.api.segment_objects import ObjectQuery
from services.api.watches import WatchedPartition
from services.common.client_security import PLAINTEXT
from services.local.process import ProcessDiedError
from services.local.stack import ServiceProcess, rlmm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from services.rpc.server.merged_metrics import GAUGES
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, some_bytes
from tests.contract.rlmm.segments import FINISHED, move, segment
from tests.harness.certificates import shown_by
from tests.harness.eventually import eventually
from tests.harness.processes import runs
from tests.harness.secured import Deployment, spiffe

SERVING = HealthCheckResponse.SERVING
LOG = os.urandom(300_000)


def rsm_in(directory: Path, more: Mapping[str, str] | None = None) -> ServiceProcess:
    objects = directory / "objects"
    objects.mkdir(exist_ok=True, parents=True)
    store = {"RSM_BACKEND": "filesystem", "RSM_DIRECTORY": str(objects)}
    settings = {"RSM_PROCESSES": "2", **store, **(more or {})}
    return ServiceProcess("rsm", settings, directory / f"rsm-{uuid4().hex}")


def rlmm_in(directory: Path, url: str, more: Mapping[str, str] | None = None) -> ServiceProcess:
    settings = {"RLMM_PROCESSES": "2", **rlmm_settings(url), **(more or {})}
    return ServiceProcess("rlmm", settings, directory / f"rlmm-{uuid4().hex}")


@contextmanager
def running(*services: ServiceProcess) -> Iterator[None]:
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(ServiceProcess.start, services))
        yield
    finally:
        for service in services:
            service.kill()


@pytest.fixture(scope="module")
def rsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    service = rsm_in(tmp_path_factory.mktemp("processes"))
    with running(service):
        yield service


@contextmanager
def client_of(*services: ServiceProcess) -> Iterator[RemoteStorageManagerClient]:
    target = "ipv4:" + ",".join(each.address for each in services)
    with open_channel(target, PLAINTEXT) as channel:
        yield RemoteStorageManagerClient(channel, target)


@contextmanager
def clients_of(service: ServiceProcess, number: int) -> Iterator[list[RemoteStorageManagerClient]]:
    """Yield clients with a connection each."""
    with ExitStack() as opened:
        yield [opened.enter_context(client_of(service)) for _ in range(number)]


@contextmanager
def clients_at_both(
    service: ServiceProcess, number: int
) -> Iterator[list[RemoteStorageManagerClient]]:
    """Yield clients with a connection each, of which both processes have some."""
    with ExitStack() as opened:
        clients: list[RemoteStorageManagerClient] = []
        while len(clients) < number or not all(served_by(service)):
            clients.append(opened.enter_context(client_of(service)))
            clients[-1].delete_log_segment_data(a_segment(1))
        # The last one is at the process that had none if there are more.
        yield clients[-number:]


def children(service: ServiceProcess) -> list[psutil.Process]:
    return psutil.Process(service.pid).children()


def served_by(service: ServiceProcess) -> list[int]:
    """Return the connections to the port of each child."""
    port = int(service.address.rpartition(":")[2])
    return [
        sum(c.laddr.port == port and c.status == "ESTABLISHED" for c in child.net_connections())
        for child in children(service)
    ]


def listens(process: psutil.Process) -> bool:
    return any(c.status == psutil.CONN_LISTEN for c in process.net_connections())


def health_of(service: ServiceProcess) -> int:
    with grpc.insecure_channel(service.announcement.health) as channel:
        return int(HealthStub(channel).Check(HealthCheckRequest(), timeout=60).status)


def page_of(service: ServiceProcess) -> str:
    with urlopen(f"http://{service.announcement.metrics}/metrics", timeout=60) as answer:
        return str(answer.read(), "utf-8")


def metrics_of(service: ServiceProcess) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page_of(service))
        for sample in family.samples
    }


def calls_of(service: ServiceProcess, method: str) -> float:
    return sum(
        value
        for (name, labels), value in metrics_of(service).items()
        if name == "sediment_rpc_seconds_count" and any(v.endswith(method) for _, v in labels)
    )


@contextmanager
def calling(*calls: Callable[[], object]) -> Iterator[None]:
    """Make each call again and again, in a thread each, until the block ends; none may fail."""
    ending, made = Event(), count()
    done = [0]

    def loop(call: Callable[[], object]) -> None:
        while not ending.is_set():
            call()
            done[0] = next(made)

    with ThreadPoolExecutor(len(calls)) as pool:
        loops: list[Future[None]] = [pool.submit(loop, call) for call in calls]
        try:
            eventually(lambda: done[0] > 2 * len(calls) or any(each.done() for each in loops))
            yield
        finally:
            ending.set()
        for each in loops:
            each.result()


def reads(rsm: RemoteStorageManagerClient) -> Callable[[], None]:
    metadata = copied(rsm, Files(log=LOG))

    def read() -> None:
        assert b"".join(rsm.fetch_log_segment(metadata, 0)) == LOG

    return read


def test_both_processes_serve_and_metrics_and_limits_are_of_both(rsm: ServiceProcess) -> None:
    before = calls_of(rsm, "FetchLogSegment")
    with clients_of(rsm, 12) as clients:
        metadata = copied(clients[0], Files(log=LOG))
        for client in clients:
            assert b"".join(client.fetch_log_segment(metadata, 0)) == LOG
        # The kernel chooses a process for each: once in 2,000 runs it chooses one for all.
        assert all(served_by(rsm)), served_by(rsm)
        eventually(lambda: calls_of(rsm, "FetchLogSegment") == before + len(clients))
    page = metrics_of(rsm)
    limits = {
        dict(labels)["kind"]: v for (n, labels), v in page.items() if n.endswith("_calls_limit")
    }
    assert (limits["unary"], limits["stream-in"], limits["stream-out"]) == (16, 8, 8)
    memory = sum(each.memory_info().rss for each in [psutil.Process(rsm.pid), *children(rsm)])
    published = page["process_resident_memory_bytes", frozenset()]
    assert 0.8 * memory < published < 1.2 * memory


@pytest.mark.parametrize("size", [300_000, 6 << 20])
def test_concurrent_copies_of_a_segment_at_two_processes_are_one_segment(
    rsm: ServiceProcess, size: int
) -> None:
    files, metadata = Files(log=some_bytes(size)), a_segment(size)
    with clients_at_both(rsm, 8) as clients, ThreadPoolExecutor(len(clients)) as pool:
        made = list(pool.map(lambda client: copied(client, files, metadata), clients))
        for client, copy in zip(clients, made, strict=True):
            assert b"".join(client.fetch_log_segment(copy, 0)) == files.log


@pytest.mark.deep
def test_a_killed_process_is_started_again_and_its_counts_stay(rsm: ServiceProcess) -> None:
    with client_of(rsm) as client:
        read = reads(client)
        with calling(*[read] * 8):
            pass
        before = calls_of(rsm, "FetchLogSegment")
        killed = children(rsm)[0]
        killed.kill()
        read()
        healths = set()

        def both_listen() -> bool:
            healths.add(health_of(rsm))
            pids = {child.pid for child in children(rsm) if listens(child)}
            return len(pids - {killed.pid}) == 2

        eventually(both_listen)
        assert healths == {SERVING}
        assert calls_of(rsm, "FetchLogSegment") > before
    assert "process 1 of 2 ended with -9" in rsm.process.log_path.read_text()


@pytest.mark.deep
def test_all_end_with_a_killed_parent_and_another_can_start(tmp_path: Path) -> None:
    service = rsm_in(tmp_path)
    with running(service):
        before = children(service)
        address = service.address
        service.process.stop(sign=signal.SIGKILL)
        eventually(lambda: not any(runs(child.pid) for child in before))
        service.start()
        assert service.address == address
        with client_of(service) as client:
            reads(client)()


def test_a_port_that_is_taken_is_refused(rsm: ServiceProcess, tmp_path: Path) -> None:
    """Also by another service of this user, whose processes let others listen beside them."""
    second = rsm_in(tmp_path)
    with pytest.raises(ProcessDiedError, match=f"cannot listen on {rsm.address}"):
        second.start({"RSM_LISTEN_ADDRESS": rsm.address})


@pytest.mark.deep
def test_a_process_that_cannot_start_ends_the_service(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    deployment = Deployment(tmp_path / "tls")
    policy.write_text("[[nothing]]")
    service = rsm_in(tmp_path, {**deployment.environment("RSM"), "RSM_POLICY_FILE": str(policy)})
    with pytest.raises(ProcessDiedError, match=r"policy file .*policy\.toml"):
        service.start()


@pytest.mark.deep
def test_health_is_of_all_processes(tmp_path: Path) -> None:
    service = rsm_in(tmp_path)
    with running(service):
        (tmp_path / "objects").rename(tmp_path / "away")
        eventually(lambda: health_of(service) != SERVING)
        (tmp_path / "away").rename(tmp_path / "objects")
        eventually(lambda: health_of(service) == SERVING)


@pytest.mark.deep
def test_no_call_fails_in_a_rolling_restart(tmp_path: Path) -> None:
    services = [rsm_in(tmp_path), rsm_in(tmp_path)]
    with running(*services), client_of(*services) as client, calling(*[reads(client)] * 8):
        for service in services:
            before = children(service)
            service.stop()
            assert service.process.returncode == 0
            assert not any(runs(child.pid) for child in before)
            service.start()
            eventually(lambda: sum(served_by(service)) > 0)  # noqa: B023


def test_changes_at_each_process_reach_watches_at_each(database_url: str, tmp_path: Path) -> None:
    service = rlmm_in(tmp_path, database_url)
    tp = TopicIdPartition(uuid4(), "orders", 0)
    with running(service), ExitStack() as opened:
        clients = []
        for _ in range(12):
            channel = opened.enter_context(open_channel(service.address, PLAINTEXT))
            clients.append(RemoteLogMetadataManagerClient(channel, service.address))
        updates = [client.watch_partitions([WatchedPartition(tp)]) for client in clients]
        for each in updates:
            opened.callback(each.close)
            next(each)
        assert all(served_by(service)), served_by(service)
        assert metrics_of(service)["sediment_rlmm_watches", frozenset()] == len(clients)
        for number, client in enumerate(clients):
            made = segment(tp, number, number)
            assert client.add_remote_log_segment_metadata(made).applied
            move(client, made, FINISHED)
        for each in updates:
            wanted = 2 * len(clients)
            assert any(p.revision >= wanted for update in each for p in update.partitions)
        page = metrics_of(service)
        assert page["sediment_rlmm_database_connections_limit", frozenset()] == 16
        assert page["sediment_rlmm_last_maintenance_timestamp_seconds", frozenset()] > 0


@contextmanager
def secured(
    deployment: Deployment, service: ServiceProcess, identity: str
) -> Iterator[Callable[[], object]]:
    with open_channel(service.address, deployment.client(identity)) as channel:
        objects = SegmentObjectsClient(channel, service.address)
        yield partial(objects.list_segment_objects, ObjectQuery())


@pytest.mark.deep
def test_tokens_and_new_files_at_each_process(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "tls")
    deployment.grant(spiffe("sweeper"), Role.SWEEPER)
    environment = {**deployment.environment("RSM"), "RSM_METRICS_PLAINTEXT": "true"}
    service = rsm_in(tmp_path, environment)
    with running(service), ExitStack() as opened:
        listed = [opened.enter_context(secured(deployment, service, "sweeper")) for _ in range(12)]
        for each in listed:
            each()
        assert all(served_by(service)), served_by(service)
        assert service.announcement.tokens
        with (
            open_channel(service.announcement.tokens, deployment.with_token("bad")) as channel,
            pytest.raises(UnauthenticatedError),
        ):
            SegmentObjectsClient(channel, "tokens").list_segment_objects(ObjectQuery())
        newer = [opened.enter_context(secured(deployment, service, "auditor")) for _ in range(12)]
        deployment.grant(spiffe("auditor"), Role.SWEEPER)

        def all_are_let_in() -> bool:
            for each in newer:
                each()
            return True

        eventually(lambda: _allowed(all_are_let_in))


@pytest.mark.deep
def test_a_new_certificate_is_shown_by_each_process(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "tls")
    deployment.grant(spiffe("sweeper"), Role.SWEEPER)
    service = rsm_in(tmp_path, deployment.environment("RSM"))
    own = deployment.authority.issue("own")
    with running(service), secured(deployment, service, "sweeper") as older:

        def shown() -> set[bytes]:
            # Once in 8 million runs the kernel gives all of them to one process.
            made = range(24)
            return {shown_by(service.address, deployment.authority.certificate, own) for _ in made}

        older()
        old = shown()
        assert len(old) == 1
        deployment.authority.issue("server")
        eventually(lambda: old.isdisjoint(shown()))
        assert len(shown()) == 1
        older()


def _allowed(call: Callable[[], bool]) -> bool:
    try:
        return call()
    except Exception as e:
        raise AssertionError(str(e)) from e


@pytest.mark.deep
@pytest.mark.parametrize("name", ["rsm", "rlmm"])
def test_every_gauge_has_a_rule(name: str, database_url: str, tmp_path: Path) -> None:
    one = {"RSM_PROCESSES": "1", "RLMM_PROCESSES": "1"}
    service = rsm_in(tmp_path, one) if name == "rsm" else rlmm_in(tmp_path, database_url, one)
    with running(service):
        page = page_of(service)
    gauges = {f.name for f in text_string_to_metric_families(page) if f.type == "gauge"}
    ours = {gauge for gauge in gauges if not gauge.endswith("_created")}
    assert len(ours) > 10
    assert ours <= GAUGES.keys()
