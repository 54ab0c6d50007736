import time
from collections.abc import Iterator
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    IncompleteRead,
    RemoteDisconnected,
)

import pytest

from tests.harness.eventually import eventually
from tests.harness.faults import (
    Answer,
    BlackHole,
    Corrupt,
    Cut,
    Delay,
    Direction,
    Ending,
    HalfClose,
    Late,
    Reset,
    Stall,
    Throttle,
    Truncate,
)
from tests.harness.http_proxy import HttpProxy

BODY = bytes(range(256)) * 1_000


@pytest.fixture
def client(proxy: HttpProxy) -> Iterator[HTTPConnection]:
    connection = HTTPConnection(proxy.address, timeout=10)
    yield connection
    connection.close()


def answer(client: HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    """Return the body of one exchange on the kept-alive connection."""
    client.request(method, path, body)
    return _response(client).read()


def _response(client: HTTPConnection) -> HTTPResponse:
    return client.getresponse()


def status(client: HTTPConnection, method: str, path: str, body: bytes | None = None) -> int:
    client.request(method, path, body)
    response = _response(client)
    response.read()
    return response.status


def test_requests_on_one_connection_are_counted_by_method_and_path(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    answer(client, "PUT", "/a", BODY)
    answer(client, "PUT", "/a", BODY)
    answer(client, "GET", "/a?part=1")
    assert proxy.counts() == {"PUT /a": 2, "GET /a": 1}


def test_chunked_bodies_pass_unchanged_and_the_connection_stays_open(
    proxy: HttpProxy, client: HTTPConnection, kept: dict[str, bytes]
) -> None:
    client.request("PUT", "/chunked", iter([BODY, BODY]), encode_chunked=True)
    client.getresponse().read()
    read_back = answer(client, "GET", "/chunked")
    assert (kept["/chunked"], read_back) == (BODY * 2, BODY * 2)
    assert [request.status for request in proxy.requests] == [200, 200]


def test_the_next_requests_are_answered_503_and_never_reach_the_server(
    proxy: HttpProxy, client: HTTPConnection, kept: dict[str, bytes]
) -> None:
    proxy.faults.add(Answer(503), times=2)
    statuses = [status(client, "PUT", f"/{n}", BODY) for n in range(3)]
    assert (statuses, list(kept)) == ([503, 503, 200], ["/2"])


def test_a_fault_hits_only_its_operation_and_skips_as_many_as_set(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    proxy.faults.add(Answer(500), operation="PUT /a", skip=1)
    statuses = [status(client, "PUT", path, BODY) for path in ("/b", "/a", "/a", "/a")]
    assert statuses == [200, 200, 500, 200]


def test_an_upload_is_cut_after_so_many_bytes(
    proxy: HttpProxy, client: HTTPConnection, kept: dict[str, bytes]
) -> None:
    proxy.faults.add(Cut(1_000, Direction.REQUEST))
    with pytest.raises((ConnectionError, HTTPException)):
        answer(client, "PUT", "/a", BODY)
    assert kept.get("/a") in (None, BODY[:1_000])


def test_a_download_is_cut_after_exactly_so_many_bytes(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    answer(client, "PUT", "/a", BODY)
    proxy.faults.add(Cut(1_000, Direction.RESPONSE))
    client.request("GET", "/a")
    response = client.getresponse()
    assert response.read(1_000) == BODY[:1_000]
    with pytest.raises((ConnectionError, HTTPException)):
        response.read()


def test_a_request_can_be_carried_out_and_its_answer_lost(
    proxy: HttpProxy, client: HTTPConnection, kept: dict[str, bytes]
) -> None:
    answer(client, "PUT", "/a", BODY)
    proxy.faults.add(Cut(0, Direction.RESPONSE), operation="GET /a")
    with pytest.raises((ConnectionError, HTTPException)):
        answer(client, "GET", "/a")
    assert proxy.requests[-1].status == 200


def test_a_delayed_request_takes_at_least_that_long(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    proxy.faults.add(Delay(200))
    started = time.monotonic()
    answer(client, "PUT", "/a", BODY)
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("ending", [Cut, Reset])
def test_a_whole_answer_or_request_can_be_lost_with_its_head(
    proxy: HttpProxy,
    client: HTTPConnection,
    kept: dict[str, bytes],
    ending: type[Ending],
    direction: Direction,
) -> None:
    proxy.faults.add(ending(None, direction))
    with pytest.raises((ConnectionError, HTTPException)):
        answer(client, "PUT", "/a", b"body")
    assert ("/a" in kept) is (direction is Direction.RESPONSE)


def test_a_reset_is_distinguished_from_an_orderly_end(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    proxy.faults.add(Reset(None, Direction.RESPONSE))
    proxy.faults.add(Cut(None, Direction.RESPONSE))
    with pytest.raises(ConnectionResetError) as reset:
        answer(client, "PUT", "/a", b"")
    client.close()
    with pytest.raises(RemoteDisconnected) as ended:
        answer(client, "PUT", "/a", b"")
    assert (reset.type, ended.type) == (ConnectionResetError, RemoteDisconnected)


def test_truncated_response_looks_complete_and_the_connection_stays_open(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    answer(client, "PUT", "/a", BODY)
    proxy.faults.add(Truncate(1_000))
    assert answer(client, "GET", "/a") == BODY[:1_000]
    assert answer(client, "GET", "/a") == BODY


def test_a_black_hole_never_answers_and_the_server_hears_nothing(
    proxy: HttpProxy, kept: dict[str, bytes]
) -> None:
    proxy.faults.add(BlackHole())
    client = HTTPConnection(proxy.address, timeout=0.3)
    with pytest.raises(TimeoutError):
        answer(client, "PUT", "/a", BODY)
    client.close()
    assert (kept, proxy.requests) == ({}, [])


def test_a_stalled_download_gives_its_first_bytes_and_then_nothing(proxy: HttpProxy) -> None:
    client = HTTPConnection(proxy.address, timeout=0.5)
    answer(client, "PUT", "/a", BODY)
    proxy.faults.add(Stall(1_000, Direction.RESPONSE))
    client.request("GET", "/a")
    response = client.getresponse()
    assert response.read(1_000) == BODY[:1_000]
    with pytest.raises(TimeoutError):
        response.read(1)
    client.close()


def test_a_stalled_upload_is_never_answered(proxy: HttpProxy, kept: dict[str, bytes]) -> None:
    proxy.faults.add(Stall(1_000, Direction.REQUEST))
    client = HTTPConnection(proxy.address, timeout=0.5)
    with pytest.raises(TimeoutError):
        answer(client, "PUT", "/a", BODY)
    assert kept == {}
    client.close()
    eventually(lambda: kept == {"/a": BODY[:1_000]})  # hung up on, the server reads to the end


def test_a_late_request_is_carried_out_after_its_client_has_abandoned(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    late = Late()
    proxy.faults.add(late)
    with pytest.raises(RemoteDisconnected):
        status(client, "PUT", "/late", BODY)
    assert late.taken.wait(10)
    assert not proxy.requests
    late.let.set()
    assert late.done.wait(10)
    assert [request.method for request in proxy.requests] == ["PUT"]


def test_a_half_closed_download_ends_for_its_reader(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    answer(client, "PUT", "/a", BODY)
    proxy.faults.add(HalfClose(1_000, Direction.RESPONSE))
    client.request("GET", "/a")
    response = client.getresponse()
    with pytest.raises(IncompleteRead) as ended:
        response.read()
    assert ended.value.partial == BODY[:1_000]


def test_a_half_closed_upload_is_still_answered(
    proxy: HttpProxy, client: HTTPConnection, kept: dict[str, bytes]
) -> None:
    proxy.faults.add(HalfClose(1_000, Direction.REQUEST))
    assert status(client, "PUT", "/a", BODY) == 200
    assert kept["/a"] == BODY[:1_000]


@pytest.mark.parametrize("place", [0, 70_000, len(BODY) - 1])
def test_one_byte_of_an_upload_is_changed(
    proxy: HttpProxy, client: HTTPConnection, kept: dict[str, bytes], place: int
) -> None:
    proxy.faults.add(Corrupt(place, Direction.REQUEST))
    answer(client, "PUT", "/a", BODY)
    assert differing(kept["/a"]) == [place]


@pytest.mark.parametrize("place", [0, 70_000, len(BODY) - 1])
def test_one_byte_of_a_download_is_changed(
    proxy: HttpProxy, client: HTTPConnection, place: int
) -> None:
    answer(client, "PUT", "/a", BODY)
    proxy.faults.add(Corrupt(place, Direction.RESPONSE))
    assert differing(answer(client, "GET", "/a")) == [place]


def test_a_narrow_connection_takes_its_time_both_ways(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    proxy.faults.add(Throttle(len(BODY) * 5), times=2)
    started = time.monotonic()
    answer(client, "PUT", "/a", BODY)
    assert answer(client, "GET", "/a") == BODY
    assert time.monotonic() - started >= 0.4


def differing(body: bytes) -> list[int]:
    return [at for at, (a, b) in enumerate(zip(body, BODY, strict=True)) if a != b]


def test_a_refusing_proxy_refuses_until_it_accepts_again_on_the_same_port(
    proxy: HttpProxy,
) -> None:
    address = proxy.address
    proxy.refuse_connections()
    with pytest.raises(ConnectionRefusedError):
        status(HTTPConnection(address, timeout=10), "GET", "/a")
    proxy.accept_connections()
    client = HTTPConnection(address, timeout=10)
    assert status(client, "GET", "/a") == 404
    client.close()


def test_open_connections_are_cut_on_demand(proxy: HttpProxy, client: HTTPConnection) -> None:
    answer(client, "PUT", "/a", BODY)
    proxy.cut_connections()
    with pytest.raises((ConnectionError, HTTPException)):
        answer(client, "GET", "/a")


def test_a_share_of_requests_fails_the_same_way_for_the_same_seed(server_address: str) -> None:
    def statuses(seed: int) -> list[int]:
        with HttpProxy(server_address, seed=seed) as proxy:
            proxy.faults.fail_share(0.5)
            client = HTTPConnection(proxy.address, timeout=10)
            got = [status(client, "GET", "/a") for _ in range(20)]
            client.close()
            return got

    assert statuses(seed=7) == statuses(seed=7)
    assert set(statuses(seed=7)) == {404, 503}


def test_cleared_faults_do_nothing_more(proxy: HttpProxy, client: HTTPConnection) -> None:
    proxy.faults.add(Answer(503), times=100)
    proxy.faults.fail_share(1.0)
    proxy.faults.clear()
    assert status(client, "PUT", "/a", BODY) == 200
