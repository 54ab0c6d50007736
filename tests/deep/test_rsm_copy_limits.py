"""Deletes and uploads at a real S3 store that has no time, and calls that keep to a rate."""

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import grpc
import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.segments import RemoteLogSegmentMetadata
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    LARGE,
    MIB,
    Files,
    StoredKeys,
    a_segment,
    copied,
    fetched,
    some_bytes,
)
from tests.harness.eventually import eventually
from tests.harness.faults import Answer, Cut, Direction, Fault
from tests.harness.http_proxy import HttpProxy
from tests.harness.served import served


def ready(
    settings: RsmSettings, proxy: HttpProxy, **changes: Any
) -> "closing[ObjectRemoteStorageManager]":
    """Behind the proxy, asked once what the store can do."""
    manager = build_manager(settings.model_copy(update={"endpoint": proxy.address, **changes}))
    manager.check()
    proxy.forget_requests()
    return closing(manager)


@pytest.mark.parametrize("fault", [Answer(503), Cut(1, Direction.RESPONSE)], ids=["503", "cut"])
def test_a_delete_that_is_refused_or_not_answered_is_repeated(
    settings: RsmSettings, proxy: HttpProxy, stored_keys: StoredKeys, fault: Fault
) -> None:
    with ready(settings, proxy, retries=2) as rsm:
        metadata = copied(rsm, Files(b"log"))
        proxy.faults.add(fault, operation="DeleteObjects", times=2)
        rsm.delete_log_segment_data(metadata)
    assert not stored_keys()
    assert proxy.counts()["DeleteObjects"] == 3


def test_batch_with_a_failed_second_request_has_an_outcome_per_segment(
    settings: RsmSettings, proxy: HttpProxy, stored_keys: StoredKeys
) -> None:
    """1,002 keys: the manifests and some bytes go with the first request."""
    with ready(settings, proxy) as rsm:
        segments = [copied(rsm, Files(b"log")) for _ in range(2)]
        others = [
            replace(segments[0], remote_log_segment_id=a_segment().remote_log_segment_id)
            for _ in range(332)
        ]
        proxy.faults.add(Answer(503), operation="DeleteObjects", skip=1)
        outcomes = rsm.delete_log_segment_data_batch([*others, *segments])
        assert [outcome is None for outcome in outcomes[-2:]] == [True, False]
        assert len(stored_keys()) == 2
        assert rsm.delete_log_segment_data_batch([*others, *segments]) == [None] * 334
    assert not stored_keys()


def test_the_clean_up_of_a_failed_copy_is_repeated(
    settings: RsmSettings, proxy: HttpProxy, stored_keys: StoredKeys
) -> None:
    with ready(settings, proxy, retries=1) as rsm:
        proxy.faults.add(Answer(400), operation="PutObject", skip=1)
        proxy.faults.add(Answer(503), operation="DeleteObjects")
        with pytest.raises(Exception, match="400"):
            copied(rsm, Files(b"log"))
    assert not stored_keys()


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "CompleteMultipartUpload"])
def test_a_step_of_an_upload_that_the_store_had_no_time_for_is_repeated(
    settings: RsmSettings, proxy: HttpProxy, stored_keys: StoredKeys, operation: str
) -> None:
    files = Files(some_bytes(LARGE))
    with ready(settings, proxy, retries=1) as rsm:
        proxy.faults.add(Answer(503), operation=operation)
        assert fetched(rsm, copied(rsm, files)) == files.log
    assert len(stored_keys()) == 3


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "CompleteMultipartUpload"])
@pytest.mark.parametrize("fault", [Answer(500), Cut(1, Direction.RESPONSE)], ids=["500", "cut"])
def test_a_step_of_an_upload_that_may_have_worked_is_not_repeated(
    settings: RsmSettings,
    proxy: HttpProxy,
    stored_keys: StoredKeys,
    operation: str,
    fault: Answer | Cut,
) -> None:
    with ready(settings, proxy, retries=3) as rsm:
        proxy.faults.add(fault, operation=operation)
        with pytest.raises(RetriableRemoteStorageError):
            copied(rsm, Files(some_bytes(LARGE)))
    assert proxy.counts()[operation] <= 1
    assert not stored_keys()


def test_cancelled_call_ends_a_copy_that_waits_for_its_rate(
    settings: RsmSettings, proxy: HttpProxy, stored_keys: StoredKeys
) -> None:
    with ready(settings, proxy, upload_rate_bytes_per_s=1000) as rsm:

        def add(server: grpc.Server) -> None:
            add_to_server(rsm, server)

        with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
            client = RemoteStorageManagerClient(channel, address, copy_timeout_s=1)
            metadata = a_segment()
            with pytest.raises(RetriableRemoteStorageError):
                copied(client, Files(some_bytes(3 * MIB)), metadata)
            eventually(lambda: may_be_deleted(rsm, metadata))
    assert not stored_keys()


def may_be_deleted(rsm: ObjectRemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> bool:
    """Not while it is being copied."""
    try:
        rsm.delete_log_segment_data(metadata)
    except RetriableRemoteStorageError:
        return False
    return True


def test_a_fetch_keeps_to_its_rate(settings: RsmSettings, proxy: HttpProxy) -> None:
    files = Files(some_bytes(4 * MIB))
    with ready(settings, proxy, fetch_rate_bytes_per_s=4 * MIB) as rsm:
        metadata = copied(rsm, files)
        began_s = time.monotonic()
        assert fetched(rsm, metadata) == files.log
        assert time.monotonic() - began_s > 0.5


def test_a_copy_keeps_to_its_rate(settings: RsmSettings, proxy: HttpProxy) -> None:
    with ready(settings, proxy, upload_rate_bytes_per_s=4 * MIB) as rsm:
        began_s = time.monotonic()
        copied(rsm, Files(some_bytes(4 * MIB)))
        assert time.monotonic() - began_s > 0.5
