"""Stop one of two servers again and again while clients call both: no call fails."""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import grpc
from sqlalchemy import Engine

from services.api.ids import TopicIdPartition
from services.common.client_security import PLAINTEXT
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied
from tests.contract.rlmm.segments import FINISHED, move, segment
from tests.harness.eventually import eventually
from tests.harness.served import RestartedServer
from tests.harness.wrapper import Counted
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as rlmm_grpc

CLIENTS = 8
STOPS = 10
CALLS_BETWEEN_STOPS = 40

Call = Callable[[int], object]


Servers = list[tuple[Counted[object], RestartedServer]]


@contextmanager
def two_servers(
    manager: object, add_to: Callable[[Any, grpc.Server], None], full_name: str
) -> Iterator[Servers]:
    counted = [Counted[object](manager) for _ in range(2)]
    servers = [RestartedServer(partial(add_to, each), full_name) for each in counted]
    yield list(zip(counted, servers, strict=True))
    for server in servers:
        server.stop()


def target_of(servers: Servers) -> str:
    return "ipv4:" + ",".join(server.address for _, server in servers)


def calls_during_stops(servers: Servers, calls: list[Call]) -> int:
    """Call without a pause while the servers are stopped in turn; return the number of calls.

    As in a rolling restart, a server stops when clients are connected to the one before.

    Raises:
        RemoteStorageError: of the first call that failed.
    """
    made, ending = itertools.count(), Event()
    done = 0

    def client(call: Call) -> None:
        nonlocal done
        for number in itertools.count():
            if ending.is_set():
                return
            call(number)
            done = next(made)

    with ThreadPoolExecutor(len(calls)) as pool:
        clients = [pool.submit(client, call) for call in calls]
        try:
            for counted, server in itertools.islice(itertools.cycle(servers), STOPS):
                more_calls(clients, lambda: done)
                server.stop()
                more_calls(clients, lambda: done)
                before = counted.calls.total()
                server.start()
                eventually(lambda: counted.calls.total() > before, 30_000)  # noqa: B023
        finally:
            ending.set()
        for each in clients:
            each.result()
    return done


def more_calls(clients: "list[Future[None]]", done: Callable[[], int]) -> None:
    """Wait until the clients have made some calls, or one has failed."""
    enough = done() + CALLS_BETWEEN_STOPS
    eventually(lambda: done() >= enough or any(client.done() for client in clients))


def test_rlmm(engine: Engine) -> None:
    def add_to(manager: Any, server: grpc.Server) -> None:
        servicer = RemoteLogMetadataManagerServicer(manager)
        rlmm_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)

    manager = SqlRemoteLogMetadataManager(engine)
    with two_servers(manager, add_to, "tieredstorage.v1.RemoteLogMetadataManager") as servers:
        address = target_of(servers)
        with open_channel(address, PLAINTEXT) as channel:
            rlmm = RemoteLogMetadataManagerClient(channel, address)

            def lives() -> Call:
                tp = TopicIdPartition(uuid4(), "orders", 0)

                def life(number: int) -> None:
                    made = segment(tp, number, number)
                    assert rlmm.add_remote_log_segment_metadata(made).applied
                    move(rlmm, made, FINISHED)
                    assert rlmm.remote_log_segment_metadata(tp, 0, number).value is not None

                return life

            assert calls_during_stops(servers, [lives() for _ in range(CLIENTS)])


def test_rsm(tmp_path: Path) -> None:
    settings = RsmSettings(backend="filesystem", directory=tmp_path, part_size_bytes=5 << 20)
    with closing(build_manager(settings)) as manager:
        name = "tieredstorage.v1.RemoteStorageManager"
        with two_servers(manager, add_to_server, name) as servers:
            address = target_of(servers)
            with open_channel(address, PLAINTEXT) as channel:
                rsm = RemoteStorageManagerClient(channel, address)
                log = os.urandom(100_000)
                metadata = copied(rsm, Files(log=log))

                def fetch(number: int) -> None:
                    assert b"".join(rsm.fetch_log_segment(metadata, 0)) == log

                assert calls_during_stops(servers, [fetch] * CLIENTS)
