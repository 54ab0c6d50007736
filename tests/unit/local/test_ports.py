import socket

from services.local.ports import LOOPBACK, TWIN_DISTANCE, free_ports, is_free


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
