"""Test the store's marker: which deployment owns the objects, and which RSMs are refused."""

import json
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.remote_storage_manager import IndexType
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_locations, build_manager, build_start_up
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    Files,
    a_segment,
    copied,
    fetched,
    index,
)
from tests.contract.rsm_over_s3 import settings_for
from tests.harness.eventually import eventually
from tests.harness.faults import Answer
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy, Request
from tests.harness.stores import keys_in

pytestmark = pytest.mark.deep

WRITES = {"PutObject", "DeleteObject", "DeleteObjects", "CreateMultipartUpload", "UploadPart"}


@pytest.fixture(params=["s3", "filesystem"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> RsmSettings:
    """Return settings of deployment "ours" and location 1, on an empty prefix."""
    if request.param == "filesystem":
        return RsmSettings(
            backend="filesystem", directory=tmp_path, prefix="tier/", deployment_id="ours"
        )
    return settings_for(request.getfixturevalue("s3"), {"deployment_id": "ours"})


def with_(settings: RsmSettings, **changes: object) -> RsmSettings:
    return settings.model_copy(update=changes)


def check(settings: RsmSettings) -> None:
    with closing(build_manager(settings)) as manager:
        manager.check()


def marker(backend: StorageBackend, settings: RsmSettings) -> dict[str, object]:
    found: dict[str, object] = json.loads(backend.get(f"{settings.prefix}.sediment"))
    return found


def keys(backend: StorageBackend, settings: RsmSettings) -> set[str]:
    return set(keys_in(backend, settings.prefix))


def test_an_empty_prefix_is_marked(settings: RsmSettings, backend: StorageBackend) -> None:
    check(settings)
    assert keys(backend, settings) == {f"{settings.prefix}.sediment"}
    assert marker(backend, settings) == {
        "format_version": 1,
        "deployment_id": "ours",
        "location_id": 1,
    }


def test_own_location_is_used_again_and_its_marker_is_unchanged(
    settings: RsmSettings, backend: StorageBackend
) -> None:
    check(settings)
    before = backend.get(f"{settings.prefix}.sediment")
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        metadata = copied(rsm, Files(b"log"))
        assert fetched(rsm, metadata) == b"log"
        rsm.delete_log_segment_data(metadata)
    assert backend.get(f"{settings.prefix}.sediment") == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"deployment_id": "theirs"}, "'ours'.*'theirs'.*RSM_DEPLOYMENT_ID"),
        ({"location_id": 2}, "location 1 .*location 2 .*RSM_LOCATION_ID"),
        ({"location_id": 2, "deployment_id": ""}, "location 1 .*location 2 .*RSM_LOCATION_ID"),
    ],
)
def test_location_of_another_deployment_is_refused_with_both_names(
    settings: RsmSettings, changes: dict[str, object], named: str
) -> None:
    check(settings)
    other = with_(settings, **changes)
    with closing(build_manager(other)) as rsm:
        for _ in range(2):
            with pytest.raises(RemoteStorageError, match=named) as refused:
                rsm.check()
            assert not isinstance(refused.value, RetriableRemoteStorageError)
        calls: list[Callable[[], object]] = [
            lambda: copied(rsm, Files(b"log")),
            lambda: fetched(rsm, a_segment()),
            lambda: index(rsm, a_segment(), IndexType.OFFSET),
            lambda: rsm.delete_log_segment_data(a_segment()),
            lambda: rsm.delete_log_segment_data_batch([a_segment()]),
        ]
        for call in calls:
            with pytest.raises(RetriableRemoteStorageError, match="not ready"):
                call()


def test_nothing_is_written_or_deleted_in_another_deployments_prefix(s3: S3Endpoint) -> None:
    settings = settings_for(s3, {"deployment_id": "ours"})
    check(settings)
    with HttpProxy(s3.endpoint, s3_operation) as proxy:
        other = with_(settings, endpoint=proxy.address, deployment_id="theirs")
        with pytest.raises(RemoteStorageError, match="theirs"):
            check(other)
        assert not WRITES & set(proxy.counts())


def test_a_marker_that_goes_away_lets_the_next_check_pass(
    settings: RsmSettings, backend: StorageBackend
) -> None:
    check(settings)
    with closing(build_manager(with_(settings, deployment_id="theirs"))) as rsm:
        with pytest.raises(RemoteStorageError, match="ours"):
            rsm.check()
        backend.delete([f"{settings.prefix}.sediment"])
        rsm.check()
        assert fetched(rsm, copied(rsm, Files(b"log"))) == b"log"
    assert marker(backend, settings)["deployment_id"] == "theirs"


def test_before_the_marker_is_checked_no_call_is_served(settings: RsmSettings) -> None:
    with closing(build_manager(settings)) as rsm:
        with pytest.raises(RetriableRemoteStorageError, match="not checked yet"):
            copied(rsm, Files(b"log"))
        rsm.check()
        copied(rsm, Files(b"log"))


def test_objects_without_a_marker_are_adopted_and_the_log_says_so(
    settings: RsmSettings, backend: StorageBackend, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(build_manager(with_(settings, deployment_id=""))) as rsm:
        rsm.check()
        metadata = copied(rsm, Files(b"log"))
    assert len(keys(backend, settings)) == 3
    with closing(build_manager(settings)) as rsm, caplog.at_level(logging.WARNING):
        rsm.check()
        assert fetched(rsm, metadata) == b"log"
    assert "adopted as location 1 of deployment 'ours'" in caplog.text
    assert marker(backend, settings)["deployment_id"] == "ours"


def test_without_a_deployment_id_nothing_is_marked_and_that_is_logged_once(
    settings: RsmSettings, backend: StorageBackend, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        closing(build_manager(with_(settings, deployment_id=""))) as rsm,
        caplog.at_level(logging.WARNING),
    ):
        rsm.check()
        rsm.check()
    assert caplog.text.count("RSM_DEPLOYMENT_ID is not set") == 1
    assert not keys(backend, settings)
    check(settings)
    check(with_(settings, deployment_id=""))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format_version": 2}', b"\xff"])
def test_unreadable_marker_is_refused_and_kept(
    settings: RsmSettings, backend: StorageBackend, content: bytes
) -> None:
    backend.put(f"{settings.prefix}.sediment", content)
    with pytest.raises(RemoteStorageError, match="not a marker of version 1"):
        check(settings)
    assert backend.get(f"{settings.prefix}.sediment") == content


@pytest.mark.parametrize(("second", "pass_"), [("theirs", 1), ("ours", 2)])
def test_of_two_that_start_at_once_both_pass_if_they_are_one_deployment(
    settings: RsmSettings, backend: StorageBackend, second: str, pass_: int
) -> None:
    barrier = Barrier(2)

    def start(deployment_id: str) -> str:
        with closing(build_manager(with_(settings, deployment_id=deployment_id))) as rsm:
            barrier.wait()
            try:
                rsm.check()
            except RemoteStorageError:
                return ""
            return deployment_id

    with ThreadPoolExecutor(2) as pool:
        passed = [each for each in pool.map(start, ["ours", second]) if each]
    assert passed == [marker(backend, settings)["deployment_id"]] * pass_


@pytest.fixture
def after_a_move(settings: RsmSettings, tmp_path: Path) -> RsmSettings:
    """Return location 2 of deployment "theirs", which lists location 1 as its own."""
    registry = tmp_path / "locations.toml"
    place = (
        f'directory = "{settings.directory}"'
        if settings.backend == "filesystem"
        else f'endpoint = "{settings.endpoint}"\nregion = "{settings.region}"\n'
        f'bucket = "{settings.bucket}"\nsecure = false'
    )
    registry.write_text(
        f'[[location]]\nid = 1\nbackend = "{settings.backend}"\nprefix = "{settings.prefix}"\n'
        + place
    )
    moved = {"prefix": f"{settings.prefix}new/", "location_id": 2, "locations_file": registry}
    return with_(settings, deployment_id="theirs", **moved)


def test_another_deployments_marker_in_a_registered_location_is_refused(
    settings: RsmSettings, backend: StorageBackend, after_a_move: RsmSettings
) -> None:
    check(settings)
    with pytest.raises(RemoteStorageError, match=r"'ours'.*'theirs'"):
        check(after_a_move)
    assert keys(backend, settings) == {f"{settings.prefix}.sediment"}
    check(with_(after_a_move, deployment_id="ours"))


@pytest.mark.parametrize("content", [b"", b'{"format_version": 2}'])
def test_unreadable_marker_in_a_registered_location_is_refused(
    settings: RsmSettings, backend: StorageBackend, after_a_move: RsmSettings, content: bytes
) -> None:
    backend.put(f"{settings.prefix}.sediment", content)
    with pytest.raises(RemoteStorageError, match=r"location 1 .*not a marker of version 1"):
        check(after_a_move)


def test_a_registered_place_that_does_not_exist_is_refused(after_a_move: RsmSettings) -> None:
    registry = after_a_move.locations_file
    assert registry is not None
    place = re.compile("^(bucket|directory) = .*$", re.MULTILINE)
    registry.write_text(place.sub(r'\1 = "no-such-place"', registry.read_text()))
    with pytest.raises(RemoteStorageError, match=r"location 1 .*no-such-place"):
        check(after_a_move)


@pytest.fixture
def behind_a_proxy(s3: S3Endpoint, tmp_path: Path) -> Iterator[tuple[RsmSettings, HttpProxy]]:
    """Provide location 2 of deployment "theirs", which lists location 1 of "ours", through the
    proxy.
    """
    before = settings_for(s3, {"deployment_id": "ours"})
    check(before)
    registry = tmp_path / "locations.toml"
    with HttpProxy(s3.endpoint, s3_operation) as proxy:
        registry.write_text(
            f'[[location]]\nid = 1\nbackend = "s3"\nendpoint = "{proxy.address}"\n'
            f'region = "{s3.region}"\nbucket = "{before.bucket}"\nprefix = "{before.prefix}"\n'
            "secure = false\n"
        )
        changes = {"location_id": 2, "locations_file": registry, "deployment_id": "theirs"}
        yield settings_for(s3, changes), proxy


def test_a_registered_location_that_is_away_holds_nothing_up_and_is_read_again_later(
    behind_a_proxy: tuple[RsmSettings, HttpProxy], caplog: pytest.LogCaptureFixture
) -> None:
    settings, proxy = behind_a_proxy
    now_s = 1000.0
    start_up = build_start_up(settings, build_locations(settings), now_s=lambda: now_s)
    proxy.faults.add(Answer(503), operation="GetObject", times=2)
    with caplog.at_level(logging.WARNING):
        start_up.check()
        now_s += 59
        start_up.require_open()
        assert len(markers_read(proxy)) == 1
        now_s += 1
        for _ in range(3):
            start_up.check()
            start_up.require_open()
        eventually(lambda: len(markers_read(proxy)) == 2)
    assert caplog.text.count("cannot be read; its marker is checked in 60 s") == 2
    now_s += 60
    with pytest.raises(RetriableRemoteStorageError, match="not ready"):
        start_up.require_open()
    with pytest.raises(RemoteStorageError, match="'ours'"):
        start_up.check()


def markers_read(proxy: HttpProxy) -> list[Request]:
    return [each for each in proxy.requests if each.operation == "GetObject"]
