"""A service that may start no thread for a while: a full node, or a limit of its container."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.watches import WatchedPartition
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings, rlmm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.probe import probe
from tests.harness.databases import Databases
from tests.harness.ship_stack import BUNDLED
from tests.harness.thread_limit import no_further_threads
from tests.unit.rlm.kafka_bytes import NAME

CALLERS = 24


@contextmanager
def running(name: str, database_url: str, directory: Path) -> Iterator[ServiceProcess]:
    objects = directory / "objects"
    objects.mkdir()
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
