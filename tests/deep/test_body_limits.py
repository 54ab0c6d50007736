"""Test what is said of a proxy that refuses a request for its size, with a real nginx."""

from contextlib import closing
from pathlib import Path

import pytest

from services.api.errors import BodyTooLargeError, RemoteStorageError, RetriableRemoteStorageError
from services.common.client_security import PLAINTEXT
from services.local.seaweedfs import S3Endpoint
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import MIB, Files, copied, some_bytes
from tests.contract.rsm_over_s3 import settings_for
from tests.harness.nginx import nginx
from tests.harness.served import served

NAME = "tieredstorage.v1.RemoteStorageManager"


def test_a_proxy_before_the_store_that_refuses_the_probe_is_named_at_start(
    s3: S3Endpoint, tmp_path: Path
) -> None:
    with nginx(tmp_path / "nginx", s3.endpoint, "1m") as address:
        settings = settings_for(s3, {"endpoint": address})
        with closing(build_manager(settings)) as rsm, pytest.raises(RemoteStorageError) as told:
            rsm.check()
    assert "(5,242,880 bytes): the object store answered 413" in str(told.value)
    assert "client_max_body_size" in str(told.value)


def test_a_proxy_before_the_store_that_refuses_a_part_is_named_at_the_copy(
    s3: S3Endpoint, tmp_path: Path
) -> None:
    with nginx(tmp_path / "nginx", s3.endpoint, "6m") as address:
        settings = settings_for(s3, {"endpoint": address, "part_size_bytes": 7 * MIB})
        with closing(build_manager(settings)) as rsm:
            rsm.check()
            with pytest.raises(BodyTooLargeError) as told:
                copied(rsm, Files(some_bytes(8 * MIB)))
    assert "(7,340,032 bytes): the object store answered 413" in str(told.value)
    assert "client_max_body_size" in str(told.value)


def test_a_proxy_between_rlm_and_rsm_is_named_with_the_size(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    settings = RsmSettings(backend="filesystem", directory=tmp_path / "objects")
    with (
        closing(build_manager(settings)) as manager,
        served(lambda server: add_to_server(manager, server), NAME) as (_, upstream),
        nginx(tmp_path / "nginx", upstream, "1m", grpc=True) as address,
        open_channel(address, PLAINTEXT) as channel,
    ):
        rsm = RemoteStorageManagerClient(channel, address)
        copied(rsm, Files(b"small"))
        files = Files(some_bytes(3 * MIB))
        size = sum(header.size_bytes for header in files.headers())
        with pytest.raises(RetriableRemoteStorageError) as told:
            copied(rsm, files)
    assert f"ended the copy of {size:,} bytes" in str(told.value)
    assert "client_max_body_size" in str(told.value)
