"""Check that RLMM's contract, client, servicer and manager list the methods in the same order."""

import pytest

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["RemoteLogMetadataManager"]


def methods_of(owner: type) -> list[str]:
    return [name for name, value in vars(owner).items() if callable(value) and name[0] != "_"]


def snake(rpc: str) -> str:
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in rpc).lstrip("_")
    return words.removeprefix("get_")


@pytest.mark.parametrize("owner", [RemoteLogMetadataManagerClient, SqlRemoteLogMetadataManager])
def test_methods_come_in_the_order_of_the_contract(owner: type) -> None:
    contract = methods_of(RemoteLogMetadataManager)
    assert len(contract) == len(SERVICE.methods)
    assert methods_of(owner)[: len(contract)] == contract


def test_rpcs_come_in_the_order_of_the_contract() -> None:
    served = methods_of(RemoteLogMetadataManagerServicer)
    assert sorted(served) == sorted(method.name for method in SERVICE.methods)
    assert list(map(snake, served)) == methods_of(RemoteLogMetadataManager)
