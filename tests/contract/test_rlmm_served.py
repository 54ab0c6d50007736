"""Test that RLMM serves all of its contract."""

import pytest

from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["RemoteLogMetadataManager"]


@pytest.mark.parametrize("rpc", [method.name for method in SERVICE.methods])
def test_an_rpc_of_the_contract_is_served(rpc: str) -> None:
    generated = getattr(pb_grpc.RemoteLogMetadataManagerServicer, rpc)
    assert getattr(RemoteLogMetadataManagerServicer, rpc) is not generated
