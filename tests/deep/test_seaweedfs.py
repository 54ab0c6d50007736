from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import grpc
import pytest
import urllib3
from minio.error import S3Error
from urllib3.exceptions import HTTPError

from services.local.process import TWIN_DISTANCE
from services.local.seaweedfs import S3Endpoint, SeaweedFS
from tests.harness.local_servers import remove_bucket


@pytest.fixture(scope="module")
def server(server_directory: Path) -> Iterator[SeaweedFS]:
    """Provide a server of our own, to be killed."""
    with SeaweedFS(server_directory / "own-s3") as server:
        server.endpoint.ensure_bucket("orders")
        yield server


def put(endpoint: S3Endpoint, key: str, content: bytes) -> None:
    endpoint.client().put_object("orders", key, BytesIO(content), len(content))


def get(endpoint: S3Endpoint, key: str) -> bytes:
    with endpoint.client().get_object("orders", key) as response:
        return bytes(response.read())


def test_a_wrong_key_is_refused(server: SeaweedFS) -> None:
    right = server.endpoint
    wrong = S3Endpoint(right.endpoint, right.access_key, "not-the-secret-key")
    with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
        put(wrong, "a", b"1")


def test_a_bucket_that_is_missing_is_not_made_by_a_put(server: SeaweedFS) -> None:
    with pytest.raises(S3Error, match="NoSuchBucket"):
        server.endpoint.client().put_object("missing", "a", BytesIO(b"1"), 1)


def test_all_that_was_acknowledged_survives_a_kill_on_the_same_ports(server: SeaweedFS) -> None:
    before = server.endpoint
    contents = {f"key-{n}": bytes([n]) * 100_000 for n in range(50)}
    for key, content in contents.items():
        put(before, key, content)
    server.kill()
    server.start()
    assert server.endpoint == before
    assert {key: get(before, key) for key in contents} == contents


def test_data_and_keys_are_found_again_by_another_object(server_directory: Path) -> None:
    directory = server_directory / "s3-found-again"
    with SeaweedFS(directory) as first:
        first.endpoint.ensure_bucket("orders")
        put(first.endpoint, "kept", b"42")
    with SeaweedFS(directory) as second:
        assert second.endpoint.secret_key == first.endpoint.secret_key
        assert get(second.endpoint, "kept") == b"42"


def test_a_bucket_is_removed_with_its_objects(server: SeaweedFS) -> None:
    server.endpoint.ensure_bucket("removed")
    server.endpoint.client().put_object("removed", "a/b/c", BytesIO(b"1"), 1)
    remove_bucket(server.endpoint, "removed")
    assert not server.endpoint.client().bucket_exists("removed")


REQUESTS = [
    ("filer", "GET", "/"),
    ("filer", "GET", "/buckets/orders/"),
    ("filer", "GET", "/buckets/orders/guarded"),
    ("filer", "PUT", "/buckets/orders/planted"),
    ("filer", "DELETE", "/buckets/orders/guarded"),
    ("volume", "GET", "/1,01"),
    ("volume", "DELETE", "/1,01"),
    ("volume", "GET", "/ui/index.html"),
    ("master", "GET", "/dir/assign"),
    ("master", "GET", "/col/delete?collection=orders"),
    ("master", "GET", "/vol/status"),
]


@pytest.mark.parametrize(("part", "method", "path"), REQUESTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_other_port_serves_a_client_without_keys(
    server: SeaweedFS, server_directory: Path, scheme: str, part: str, method: str, path: str
) -> None:
    put(server.endpoint, "guarded", b"bytes")
    authority = str(server_directory / "own-s3" / "tls" / "ca.crt")
    http = urllib3.PoolManager(ca_certs=authority, retries=False, timeout=5)
    try:
        address = f"{scheme}://127.0.0.1:{server.ports[part]}{path}"
        status = http.request(method, address, body=b"planted" if method == "PUT" else None).status
    except HTTPError:
        status = 0  # a handshake that failed
    assert status in (0, 400, 401)
    assert get(server.endpoint, "guarded") == b"bytes"


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("filer", "/filer_pb.SeaweedFiler/GetFilerConfiguration"),
        ("master", "/master_pb.Seaweed/Assign"),
        ("volume", "/volume_server_pb.VolumeServer/VolumeServerStatus"),
        ("s3", "/messaging_pb.SeaweedS3IamCache/ListPolicies"),
    ],
)
def test_no_grpc_port_serves_a_client_without_a_certificate(
    server: SeaweedFS, part: str, method: str
) -> None:
    address = f"127.0.0.1:{server.ports[part] + TWIN_DISTANCE}"
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(method, bytes, bytes)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=10)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.deep
def test_nothing_is_left_in_the_directory_for_temporary_files(server: SeaweedFS) -> None:
    sockets = set(server.sockets())
    assert any(path.exists() for path in sockets)
    server.kill()
    server.start()
    server.kill()
    assert not any(path.exists() for path in sockets)
    server.start()
