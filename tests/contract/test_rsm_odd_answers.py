"""Test RSM over a real S3 store whose answers are legal but rare, or wrong."""

from collections.abc import Iterator

import pytest

from services.api.errors import RetriableRemoteStorageError, StoreAccessDeniedError
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend, build_locations, build_start_up
from services.rsm.layout import segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.probe import RuleLevel
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    Files,
    a_segment,
    copied,
    fetched,
    some_bytes,
)
from tests.contract.rsm_over_s3 import PART as PART_BYTES
from tests.contract.rsm_over_s3 import settings_for
from tests.contract.rsm_through_faults import rsm_behind
from tests.harness.faults import Answer, Etag, Padding
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.stores import keys_in

BLANK = Padding(b"\n\r\n \t")
"""What S3 sends while it works on an answer, so that the connection stays."""

TWO_PARTS = Files(some_bytes(PART_BYTES + 1000))


@pytest.fixture(scope="module")
def settings(s3: S3Endpoint) -> RsmSettings:
    return settings_for(s3)


@pytest.fixture(scope="module")
def proxy(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation) as running:
        yield running


@pytest.fixture(scope="module")
def rsm(proxy: HttpProxy, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with rsm_behind(proxy, settings, retries=0) as manager:
        yield manager


@pytest.fixture(autouse=True)
def faultless(proxy: HttpProxy) -> Iterator[None]:
    yield
    proxy.faults.clear()


def test_white_space_before_the_xml_of_any_answer_is_skipped(
    proxy: HttpProxy, settings: RsmSettings, rsm: ObjectRemoteStorageManager
) -> None:
    operations = (
        "CreateMultipartUpload",
        "CompleteMultipartUpload",
        "ListMultipartUploads",
        "ListObjectsV2",
        "DeleteObjects",
    )
    proxy.forget_requests()
    for operation in operations:
        proxy.faults.add(BLANK, operation=operation, times=None)
    metadata = copied(rsm, TWO_PARTS)
    assert fetched(rsm, metadata) == TWO_PARTS.log
    store = build_backend(settings.model_copy(update={"endpoint": proxy.address}))
    prefix = segment_keys(settings.prefix, metadata).prefix
    assert len(list(keys_in(store, prefix))) == 3
    assert not list(store.list_uploads(prefix))
    rsm.delete_log_segment_data(metadata)
    assert not list(keys_in(store, prefix))
    assert {*operations} <= {*proxy.counts()}


def test_rules_that_a_store_does_not_say_are_unknown_and_asked_for_every_hour(
    proxy: HttpProxy, settings: RsmSettings
) -> None:
    times_s = [0.0]
    behind = settings.model_copy(update={"endpoint": proxy.address})
    start_up = build_start_up(behind, build_locations(behind), lambda: times_s[-1])
    proxy.faults.add(denied(403), operation="GetBucketLifecycleConfiguration")
    start_up.check()
    levels = [rule.level for rule in start_up.rules]
    assert levels == [RuleLevel.UNKNOWN, RuleLevel.OK]
    proxy.forget_requests()
    for now_s in (3_599.0, 3_601.0, 3_602.0):
        times_s.append(now_s)
        start_up.check()
    assert proxy.counts()["GetBucketLifecycleConfiguration"] == 1
    assert {rule.level for rule in start_up.rules} == {RuleLevel.OK}


def denied(status: int) -> Answer:
    page = "\n\r\n<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>"
    return Answer(status, page, kind="application/xml")


def test_white_space_before_the_xml_of_an_error_is_skipped(
    proxy: HttpProxy, rsm: ObjectRemoteStorageManager
) -> None:
    metadata = copied(rsm, TWO_PARTS)
    proxy.faults.add(denied(403), operation="GetObject")
    with pytest.raises(StoreAccessDeniedError, match="AccessDenied"):
        fetched(rsm, metadata)


def test_an_upload_whose_completion_fails_after_its_status_is_no_copy(
    proxy: HttpProxy, rsm: ObjectRemoteStorageManager
) -> None:
    proxy.faults.add(denied(200), operation="CompleteMultipartUpload")
    with pytest.raises(StoreAccessDeniedError, match="AccessDenied"):
        copied(rsm, TWO_PARTS)


def test_a_wrong_etag_of_a_part_may_be_retried(
    proxy: HttpProxy, rsm: ObjectRemoteStorageManager
) -> None:
    wrong = Etag('"0123456789abcdef0123456789abcdef"')
    proxy.faults.add(wrong, operation="UploadPart")
    metadata = a_segment(len(TWO_PARTS.log))
    with pytest.raises(RetriableRemoteStorageError, match="a wrong ETag"):
        rsm.copy_log_segment_data(metadata, TWO_PARTS.data())
    assert rsm.copy_log_segment_data(metadata, TWO_PARTS.data())


DROPPED = Answer(200, page=" ", etag='"0123456789abcdef0123456789abcdef"')
"""A store that acknowledges a PUT and drops it."""


@pytest.mark.parametrize(("skip", "kind"), [(0, "indexes"), (1, "manifest")])
def test_a_dropped_write_is_found_at_the_copy_if_writes_are_verified(
    proxy: HttpProxy, settings: RsmSettings, skip: int, kind: str
) -> None:
    verified = settings.model_copy(update={"verify_writes": True})
    with rsm_behind(proxy, verified, retries=0) as rsm:
        proxy.faults.add(DROPPED, operation="PutObject", skip=skip)
        metadata = a_segment(len(TWO_PARTS.log))
        with pytest.raises(
            RetriableRemoteStorageError, match=r"acknowledged .* does not have it"
        ) as e:
            copied(rsm, TWO_PARTS, metadata)
        assert f".{kind}" in str(e.value)
        proxy.forget_requests()
        again = copied(rsm, TWO_PARTS, metadata)
        assert proxy.counts()["HeadObject"] == 3
        assert fetched(rsm, again) == TWO_PARTS.log


def test_writes_are_not_verified_by_default(
    proxy: HttpProxy, rsm: ObjectRemoteStorageManager
) -> None:
    proxy.forget_requests()
    copied(rsm, TWO_PARTS)
    assert proxy.counts()["HeadObject"] == 0
