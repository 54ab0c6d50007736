import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from tests.harness.faults import Answer, Delay, Throttle
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
    return client.getresponse().read()


def status(client: HTTPConnection, method: str, path: str, body: bytes | None = None) -> int:
    client.request(method, path, body)
    response = client.getresponse()
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


def test_a_delayed_request_takes_at_least_that_long(
    proxy: HttpProxy, client: HTTPConnection
) -> None:
    proxy.faults.add(Delay(200))
    started = time.monotonic()
    answer(client, "PUT", "/a", BODY)
    assert time.monotonic() - started >= 0.2


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
