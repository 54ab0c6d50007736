import socket

import pytest

from services.local.process import LOOPBACK, TWIN_DISTANCE, ReservedPorts, is_free
from tests.harness.local_servers import free_ports


def listen(port: int) -> socket.socket:
    return socket.create_server((LOOPBACK, port))


def test_ports_and_their_twins_can_all_be_listened_on_at_once() -> None:
    ports = free_ports(8)
    twins = [port + TWIN_DISTANCE for port in ports]
    listening = [listen(port) for port in ports + twins]
    assert len({*ports, *twins}) == 16
    for one in listening:
        one.close()


def test_ports_leave_room_for_the_twin_that_seaweedfs_derives() -> None:
    assert max(free_ports(100)) < 55_536


def test_a_port_in_use_is_not_free() -> None:
    port = free_ports(1)[0]
    assert is_free(port)
    with listen(port):
        assert not is_free(port)


def test_a_port_is_not_given_if_it_or_its_twin_is_in_use() -> None:
    taken, twin_taken, free = free_ports(3)
    with listen(taken), listen(twin_taken + TWIN_DISTANCE):
        assert free_ports(1, [taken, twin_taken, free]) == [free]


def test_too_few_free_ports_are_an_error() -> None:
    port = free_ports(1)[0]
    with listen(port), pytest.raises(RuntimeError, match="fewer than 1"):
        free_ports(1, [port])


def test_held_ports_stay_reserved_while_their_server_is_down() -> None:
    held = ReservedPorts(1)
    (port,) = held.ports
    for _ in range(2):
        with listen(port) as server, socket.create_connection((LOOPBACK, port)):
            server.accept()[0].close()
        assert not is_free(port)
        with pytest.raises(RuntimeError, match="fewer than 1"):
            free_ports(1, [port])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port))


def test_held_ports_are_free_after_release_or_garbage_collection() -> None:
    released, forgotten = ReservedPorts(1), ReservedPorts(1)
    ports = [*released.ports, *forgotten.ports]
    released.release()
    del forgotten
    assert all(map(is_free, ports))
