"""RSM over HDFS whose name node is cut off, away for a moment, or slow."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.local.emulators import StoreEmulator
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from tests.contract.remote_storage_manager_contract import (
    LARGE,
    Files,
    copied,
    fetched,
    some_bytes,
)
from tests.contract.rsm_over_s3 import everything_in
from tests.harness.eventually import eventually
from tests.harness.faults import Cut, Delay, Direction, Reset
from tests.harness.local_servers import free_ports
from tests.harness.proxy import LOOPBACK, TcpProxy
from tests.stores.conftest import StoreSettings

pytestmark = pytest.mark.deep

Trouble = Callable[[TcpProxy], None]
LATER_BYTES = 2_000
FILES = Files(some_bytes(LARGE))

TROUBLES: dict[str, Trouble] = {
    "connections cut at rest": lambda proxy: proxy.cut_connections(),
    "high latency": lambda proxy: proxy.faults.add(Delay(40, jitter_ms=80), times=None),
    "requests reset": lambda proxy: later(proxy, Reset(LATER_BYTES, Direction.REQUEST)),
    "answers reset": lambda proxy: later(proxy, Reset(LATER_BYTES, Direction.RESPONSE)),
    "answers cut off": lambda proxy: later(proxy, Cut(LATER_BYTES, Direction.RESPONSE)),
}


def later(proxy: TcpProxy, ending: Cut | Reset) -> None:
    """End the next two connections in the middle of their work."""
    proxy.faults.add(ending, times=2)
    proxy.cut_connections()


@pytest.fixture
def proxy(emulator: StoreEmulator) -> Iterator[TcpProxy]:
    with TcpProxy(emulator.address) as running:
        yield running


@pytest.fixture
def rsm(proxy: TcpProxy, store_settings: StoreSettings) -> Iterator[ObjectRemoteStorageManager]:
    settings = store_settings(proxy.address, retries=3)
    with closing(build_manager(settings)) as manager:
        manager.check()
        yield manager


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=list(TROUBLES))
def test_what_fails_is_retriable_and_what_it_left_goes_with_a_delete(
    rsm: ObjectRemoteStorageManager,
    proxy: TcpProxy,
    store_settings: StoreSettings,
    trouble: Trouble,
) -> None:
    """A name node that has answered too late may have done what was asked."""
    settings = store_settings()
    everything = everything_in(build_backend(settings), settings.prefix)
    before, segments = everything(), []
    trouble(proxy)
    for _ in range(3):
        with suppress(RetriableRemoteStorageError):
            segments.append(copied(rsm, FILES))
    for segment in segments:
        with suppress(RetriableRemoteStorageError):
            assert fetched(rsm, segment) == FILES.log
    assert segments, "every copy failed"

    proxy.faults.clear()
    for segment in segments:
        assert fetched(rsm, segment) == FILES.log
        rsm.delete_log_segment_data(segment)
    assert everything() == before


def test_a_name_node_that_is_away_is_retriable_and_its_return_is_noticed(
    rsm: ObjectRemoteStorageManager, proxy: TcpProxy
) -> None:
    segment = copied(rsm, FILES)
    proxy.refuse_connections()
    proxy.cut_connections()
    for call in (lambda: fetched(rsm, segment), lambda: copied(rsm, FILES)):
        with pytest.raises(RetriableRemoteStorageError):
            call()

    proxy.accept_connections()
    assert fetched(rsm, segment) == FILES.log
    rsm.delete_log_segment_data(copied(rsm, FILES))


def test_each_name_node_of_a_name_service_is_asked(
    proxy: TcpProxy,
    store_settings: StoreSettings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The library cannot wait before it asks all of them again."""
    (dead,) = free_ports(1)
    known = {
        "dfs.nameservices": "tier",
        "dfs.ha.namenodes.tier": "first,second",
        "dfs.namenode.rpc-address.tier.first": f"{LOOPBACK}:{dead}",
        "dfs.namenode.rpc-address.tier.second": proxy.address,
    }
    entries = [f"<name>{name}</name><value>{value}</value>" for name, value in known.items()]
    site = "".join(f"<property>{each}</property>" for each in entries)
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{site}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with closing(build_manager(store_settings("tier", retries=3))) as rsm:
        rsm.check()
        segment = copied(rsm, FILES)
        proxy.refuse_connections()
        proxy.cut_connections()
        with pytest.raises(RetriableRemoteStorageError):
            fetched(rsm, segment)
        proxy.accept_connections()

        def is_served() -> bool:
            """Its last connection may be noticed as cut by the first request only."""
            with suppress(RetriableRemoteStorageError):
                return fetched(rsm, segment) == FILES.log
            return False

        eventually(is_served)
