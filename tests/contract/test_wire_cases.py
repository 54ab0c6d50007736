"""Check that every RPC has a case that runs over gRPC in `make test`."""

from collections.abc import Iterable, Mapping

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from tests.contract import wire_cases
from tests.contract.remote_log_metadata_manager_contract import RemoteLogMetadataManagerContract
from tests.contract.remote_storage_manager_contract import RemoteStorageManagerContract
from tests.contract.rlm_lifecycle_contract import RlmLifecycleContract
from tests.contract.segment_objects_contract import SegmentObjectsContract
from tieredstorage.v1 import (
    remote_log_manager_pb2,
    remote_log_metadata_manager_pb2,
    remote_storage_manager_pb2,
)

# These have suites of their own (test_rlm_reads.py, test_descriptions.py, test_cli_status.py,
# test_drain.py).
ELSEWHERE = {
    "Fetch",
    "ListOffsets",
    "OffsetForLeaderEpoch",
    "DeleteRecords",
    "SetLocalRetentionOwner",
    "BuildRemoteLogAuxState",
    "DescribePartitions",
    "GetCopyLag",
    "Drain",
}


def service(module: object, name: str) -> ServiceDescriptor:
    found = module.DESCRIPTOR.services_by_name[name]  # type: ignore[attr-defined]
    assert isinstance(found, ServiceDescriptor)
    return found


def names(services: Iterable[ServiceDescriptor]) -> set[str]:
    return {method.name for each in services for method in each.methods}


def test_every_rpc_has_a_case() -> None:
    services = (
        service(remote_log_metadata_manager_pb2, "RemoteLogMetadataManager"),
        service(remote_storage_manager_pb2, "RemoteStorageManager"),
        service(remote_log_manager_pb2, "RemoteLogManager"),
    )
    cases = {
        *wire_cases.RLMM,
        *wire_cases.RSM,
        *wire_cases.SEGMENT_OBJECTS,
        *wire_cases.RLM_LIFECYCLE,
    }
    assert names(services) == cases | ELSEWHERE


@pytest.mark.parametrize(
    ("cases", "contract"),
    [
        (wire_cases.RLMM, RemoteLogMetadataManagerContract),
        (wire_cases.RSM, RemoteStorageManagerContract),
        (wire_cases.SEGMENT_OBJECTS, SegmentObjectsContract),
        (wire_cases.RLM_LIFECYCLE, RlmLifecycleContract),
    ],
)
def test_every_case_is_a_test_of_its_contract(cases: Mapping[str, str], contract: type) -> None:
    assert [name for name in cases.values() if not hasattr(contract, name)] == []
