"""The PUT of a manifest that has no answer, and takes effect when nobody hopes for it any more."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend, build_manager
from services.rsm.layout import segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.contract.rsm_through_faults import rsm_behind
from tests.harness.eventually import eventually
from tests.harness.faults import Answer, Cut, Direction, Fault, Late
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy

FILES = Files(b"log")
BEFORE_THE_MANIFEST = 2
"""Objects of so small a copy, each a PUT: the log and the indexes."""

GIVE_UP_S = 120.0


@pytest.fixture
def settings(s3: S3Endpoint) -> RsmSettings:
    return settings_for(s3)


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation) as running:
        yield running


@pytest.fixture
def other(settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    """Another process of RSM, with a way of its own to the store."""
    with closing(build_manager(settings)) as manager:
        manager.check()
        yield manager


def test_a_copy_that_answers_with_a_manifest_that_came_late_keeps_its_objects(
    proxy: HttpProxy, settings: RsmSettings, other: ObjectRemoteStorageManager
) -> None:
    """The copy that put it has looked and found none: whatever that deletes, it deletes last."""
    metadata, put, delete = a_segment(len(FILES.log)), Late(), Late()
    with rsm_behind(proxy, settings, retries=0) as unlucky, ThreadPoolExecutor(1) as pool:
        proxy.faults.add(put, operation="PutObject", skip=BEFORE_THE_MANIFEST)
        proxy.faults.add(delete, operation="DeleteObjects")
        lost = pool.submit(copied, unlucky, FILES, metadata)
        eventually(lambda: lost.done() or delete.taken.is_set(), deadline_ms=int(GIVE_UP_S * 1000))
        assert put.taken.is_set()
        put.let.set()
        assert put.done.wait(GIVE_UP_S)
        acknowledged = copied(other, FILES, metadata)
        if delete.taken.is_set():
            delete.let.set()
            assert delete.done.wait(GIVE_UP_S)
        with pytest.raises(RetriableRemoteStorageError, match="cannot be reached"):
            lost.result(GIVE_UP_S)
    assert fetched(other, acknowledged) == FILES.log


@pytest.mark.parametrize(
    "faults",
    [
        [Cut(None, Direction.REQUEST)],
        [Cut(None, Direction.REQUEST), Answer(503)],
        [Answer(502)],
        [Answer(504)],
    ],
    ids=["no answer", "none, then a refusal", "502", "504"],
)
def test_objects_stay_if_their_manifest_may_still_arrive(
    proxy: HttpProxy, settings: RsmSettings, faults: list[Fault]
) -> None:
    metadata = a_segment(len(FILES.log))
    left = everything_in(build_backend(settings), segment_keys(settings.prefix, metadata).prefix)
    with rsm_behind(proxy, settings, retries=len(faults) - 1) as rsm:
        for fault in faults:
            proxy.faults.add(fault, operation="PutObject", skip=BEFORE_THE_MANIFEST)
        with pytest.raises(RetriableRemoteStorageError):
            copied(rsm, FILES, metadata)
        assert len(left()) == BEFORE_THE_MANIFEST
        rsm.delete_log_segment_data(metadata)
        assert not left()


def test_objects_are_removed_if_each_manifest_put_was_refused(
    proxy: HttpProxy, settings: RsmSettings
) -> None:
    metadata = a_segment(len(FILES.log))
    left = everything_in(build_backend(settings), segment_keys(settings.prefix, metadata).prefix)
    with rsm_behind(proxy, settings, retries=1) as rsm:
        refused = Answer(503)
        proxy.faults.add(refused, operation="PutObject", skip=BEFORE_THE_MANIFEST, times=2)
        with pytest.raises(RetriableRemoteStorageError, match="503"):
            copied(rsm, FILES, metadata)
    assert not left()


def test_a_repeat_leaves_nothing_if_the_manifest_that_counts_cannot_be_read_now(
    proxy: HttpProxy, settings: RsmSettings
) -> None:
    metadata = a_segment(len(FILES.log))
    left = everything_in(build_backend(settings), segment_keys(settings.prefix, metadata).prefix)
    with rsm_behind(proxy, settings, retries=0) as rsm:
        copied(rsm, FILES, metadata)
        counting = left()
        proxy.faults.add(Answer(503), operation="GetObject")
        with pytest.raises(RetriableRemoteStorageError, match=r"GET .*503"):
            copied(rsm, FILES, metadata)
    assert left() == counting


def test_objects_stay_if_an_unreadable_manifest_may_be_their_own(
    proxy: HttpProxy, settings: RsmSettings
) -> None:
    """The store has written it, answers no word of it, and calls the key taken when it is asked
    again."""
    metadata = a_segment(len(FILES.log))
    with rsm_behind(proxy, settings, retries=1) as rsm:
        unheard = Cut(None, Direction.RESPONSE)
        proxy.faults.add(unheard, operation="PutObject", skip=BEFORE_THE_MANIFEST)
        proxy.faults.add(Answer(503), operation="GetObject", times=2)
        with pytest.raises(RetriableRemoteStorageError, match="perhaps from an earlier try"):
            copied(rsm, FILES, metadata)
        assert fetched(rsm, metadata) == FILES.log
