"""A service that may start no thread for a while: a full node, or a limit of its container."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.remote_log_metadata_manager import all_segments
from services.api.remote_storage_manager import IndexType
from services.api.watches import WatchedPartition
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings, rlmm_settings
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import list_segments
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.probe import probe
from services.rpc.client.storage import RemoteStorageManagerClient
from tests.contract.remote_storage_manager_contract import MIB, Files, copied, fetched, index
from tests.harness.databases import Databases
from tests.harness.eventually import eventually
from tests.harness.ship_stack import BUNDLED, FINISHED
from tests.harness.small_limits import no_further_threads
from tests.harness.world import COPY_LEASE_MS, linked_log
from tests.unit.rlm.kafka_bytes import NAME

CALLERS = 24


@contextmanager
def running(name: str, database_url: str, directory: Path) -> Iterator[ServiceProcess]:
    objects = directory / "objects"
    objects.mkdir(exist_ok=True)
    nowhere = "127.0.0.1:1"
    settings = {
        "rsm": {"RSM_BACKEND": "filesystem", "RSM_DIRECTORY": str(objects)},
        "rlmm": rlmm_settings(database_url),
        "rlm": rlm_settings(nowhere, nowhere, [BUNDLED], None),
    }
    service = ServiceProcess(name, settings[name], directory / name)
    service.start()
    try:
        yield service
    finally:
        service.kill()


def may_start_a_thread(service: ServiceProcess) -> bool:
    """Return whether the process does: each connection to its metrics has a thread of its own."""
    try:
        with urlopen(f"http://{service.announcement.metrics}/metrics", timeout=60) as answer:
            return bool(answer.read())
    except (OSError, HTTPException):
        return False


def is_refused_a_thread(service: ServiceProcess) -> bool:
    return "can't start new thread" in service.process.log_path.read_text()


def problems(service: ServiceProcess) -> set[str]:
    """Return what callers that come together get instead of an answer."""

    def ask(_: int) -> str:
        with open_channel(service.address, PLAINTEXT) as channel:
            return probe(channel).problem

    with ThreadPoolExecutor(CALLERS) as callers:
        return set(callers.map(ask, range(2 * CALLERS)))


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    url = databases.take()
    yield url
    databases.give_back(url)


@pytest.mark.parametrize("name", ["rsm", "rlmm", "rlm"])
def test_a_service_answers_while_it_may_start_no_thread_and_afterwards(
    name: str, database_url: str, tmp_path: Path
) -> None:
    with running(name, database_url, tmp_path) as service:
        assert may_start_a_thread(service)
        with no_further_threads(service.process.pid):
            assert not may_start_a_thread(service)
            assert problems(service) == {""}
        assert may_start_a_thread(service)
        assert problems(service) == {""}
        assert service.is_running()


def test_rsm_copies_and_reads_while_it_may_start_no_thread(
    database_url: str, tmp_path: Path
) -> None:
    with (
        running("rsm", database_url, tmp_path) as service,
        open_channel(service.address, PLAINTEXT) as channel,
        no_further_threads(service.process.pid),
    ):
        client = RemoteStorageManagerClient(channel, service.address)
        files = Files(bytes(3 * MIB))
        segment = copied(client, files)
        assert fetched(client, segment) == files.log
        for kind in IndexType:
            assert index(client, segment, kind) == files.indexes[kind]
        assert not may_start_a_thread(service)


def test_a_watch_that_could_not_be_served_is_served_later(
    database_url: str, tmp_path: Path
) -> None:
    with (
        running("rlmm", database_url, tmp_path) as service,
        open_channel(service.address, PLAINTEXT) as channel,
    ):
        client = RemoteLogMetadataManagerClient(channel, service.address)
        with (
            no_further_threads(service.process.pid),
            closing(client.watch_partitions([WatchedPartition(NAME)])) as refused,
            pytest.raises(RetriableRemoteStorageError, match="no thread could be started"),
        ):
            next(refused)
        with closing(client.watch_partitions([WatchedPartition(NAME)])) as served:
            assert [each.place for each in next(served).partitions] == [0]


def test_rlm_copies_everything_after_it_could_start_no_thread(
    database_url: str, tmp_path: Path
) -> None:
    """A thread that it could not start for a copy must hold up no later one for good."""
    log_dir = linked_log(tmp_path)
    with (
        running("rsm", database_url, tmp_path) as rsm,
        running("rlmm", database_url, tmp_path) as rlmm,
        open_channel(rlmm.address, PLAINTEXT) as channel,
    ):
        settings = rlm_settings(rsm.address, rlmm.address, [log_dir], 500)
        lease = {"RLM_COPY_LEASE_MS": str(COPY_LEASE_MS)}
        service = ServiceProcess("rlm", settings | lease, tmp_path / "rlm")
        rsm.stop()
        service.start()
        try:
            with no_further_threads(service.process.pid):
                rsm.start()
                eventually(lambda: not service.is_running() or is_refused_a_thread(service))
            if not service.is_running():
                assert service.process.returncode == 1
                service.start()
            partitions = find_partitions([log_dir]).partitions
            client = RemoteLogMetadataManagerClient(channel, rlmm.address)

            def all_are_copied() -> bool:
                return all(
                    sum(each.state is FINISHED for each in all_segments(client, name))
                    == sum(each.is_rolled for each in list_segments(partition.path))
                    for name, partition in partitions.items()
                )

            eventually(all_are_copied)
        finally:
            service.kill()
