"""Deletes over gRPC and S3 are answered before the caller's deadline, whatever the store does."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import grpc
import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.segment_objects import (
    ObjectQuery,
    ObjectToDelete,
    SegmentObjectKind,
    SegmentObjects,
    all_segment_objects,
)
from services.rpc.client.calls import call_once
from services.rpc.converters.rpcs import rpc_of
from services.rpc.converters.shared import metadata_to_proto
from services.rpc.statuses import outcome_of
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, StoredKeys, copied
from tests.harness.faults import BlackHole
from tests.harness.http_proxy import HttpProxy
from tests.harness.served import served
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

COPIES = 35
"""More than are looked for before those that were found are deleted."""

DEADLINE_S = 8.0
"""Less than RSM waits for a silent store."""


@pytest.fixture
def rsm(proxy: HttpProxy, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    behind = settings.model_copy(update={"endpoint": proxy.address})
    with closing(build_manager(behind)) as manager:
        yield manager


@pytest.fixture
def stub(rsm: ObjectRemoteStorageManager) -> Iterator[pb_grpc.RemoteStorageManagerStub]:
    def add(server: grpc.Server) -> None:
        add_to_server(rsm, server)

    with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, _):
        yield pb_grpc.RemoteStorageManagerStub(channel)


def test_silent_store_does_not_hide_the_finished_deletes_of_a_batch(
    rsm: ObjectRemoteStorageManager,
    stub: pb_grpc.RemoteStorageManagerStub,
    proxy: HttpProxy,
    stored_keys: StoredKeys,
) -> None:
    unfinished = [replace(copied(rsm, Files(b"log")), custom_metadata=None) for _ in range(COPIES)]
    proxy.faults.add(BlackHole(), operation="ListObjectsV2", times=None, skip=COPIES - 1)
    request = pb.DeleteLogSegmentDataBatchRequest(
        metadatas=[metadata_to_proto(each) for each in unfinished]
    )
    reply = call_once(stub.DeleteLogSegmentDataBatch, request, "rsm", DEADLINE_S)
    assert_tells_what_is_gone([outcome_of(each) for each in reply.outcomes])
    proxy.faults.clear()
    not_told = sum(each.code != 0 for each in reply.outcomes)
    assert len(stored_keys()) <= 3 * not_told


def test_silent_store_does_not_hide_the_deleted_objects(
    rsm: ObjectRemoteStorageManager,
    stub: pb_grpc.RemoteStorageManagerStub,
    proxy: HttpProxy,
    stored_keys: StoredKeys,
) -> None:
    for _ in range(COPIES):
        copied(rsm, Files(b"log"))
    manifests = [
        ObjectToDelete(each.location, each.etag)
        for each in all_segment_objects(rsm.objects, ObjectQuery())
        if each.name.kind is SegmentObjectKind.MANIFEST
    ]
    proxy.faults.add(BlackHole(), operation="HeadObject", times=None, skip=COPIES - 1)
    rpc = rpc_of(SegmentObjects.delete_segment_objects)
    request = rpc.request((manifests,), {"committed_copies": True})
    reply = call_once(stub.DeleteSegmentObjects, request, "rsm", DEADLINE_S)
    assert_tells_what_is_gone([outcome_of(each) for each in reply.outcomes])
    proxy.faults.clear()
    left = {key for key in stored_keys() if key.endswith(".manifest")}
    reported = {
        doomed.location.key
        for doomed, outcome in zip(manifests, reply.outcomes, strict=True)
        if outcome.code == 0
    }
    assert not left & reported


def assert_tells_what_is_gone(outcomes: Sequence[RemoteStorageError | None]) -> None:
    """Of some that they are gone, of the others that they are to be deleted again."""
    assert {type(outcome) for outcome in outcomes} == {type(None), RetriableRemoteStorageError}
