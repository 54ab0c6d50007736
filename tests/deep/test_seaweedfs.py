from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from minio.error import S3Error

from services.local.seaweedfs import S3Endpoint, SeaweedFS


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
    server.restart()
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
    server.endpoint.remove_bucket("removed")
    assert not server.endpoint.client().bucket_exists("removed")


@pytest.mark.deep
def test_nothing_is_left_in_the_directory_for_temporary_files(server: SeaweedFS) -> None:
    sockets = set(server.sockets())
    assert any(path.exists() for path in sockets)
    server.restart()
    server.kill()
    assert not any(path.exists() for path in sockets)
    server.start()
