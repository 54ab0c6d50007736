"""What RLMM does not serve yet it refuses by name, and touches nothing."""

from collections.abc import Iterator

import grpc
import pytest

from services.api.errors import NotServedError
from services.rlmm.database import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.not_served_servicer import NotServed
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.statuses import rpc_errors_as_ours
from tests.harness.grpc_server import served
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

NOT_SERVED = sorted(name for name in vars(NotServed) if name[0].isupper())


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    """To an RLMM without a database: nothing may be asked of one."""
    engine = create_database_engine("postgresql://nobody@127.0.0.1:1/none")

    def add_to(server: grpc.Server) -> None:
        servicer = RemoteLogMetadataManagerServicer(SqlRemoteLogMetadataManager(engine))
        pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)

    with served(add_to, "tieredstorage.v1.RemoteLogMetadataManager") as (made, _):
        yield made


@pytest.mark.parametrize("rpc", NOT_SERVED)
def test_an_rpc_that_is_not_served_says_so(channel: grpc.Channel, rpc: str) -> None:
    request = getattr(pb, f"{rpc}Request")()
    call = getattr(pb_grpc.RemoteLogMetadataManagerStub(channel), rpc)
    with pytest.raises(NotServedError, match=f"^{rpc} "), rpc_errors_as_ours("rlmm"):
        call(iter([request]) if rpc == "ImportRemoteLogSegments" else request, timeout=60)


def test_only_what_the_contract_calls_so_is_not_served() -> None:
    documented = {
        method.name
        for method in pb.DESCRIPTOR.services_by_name["RemoteLogMetadataManager"].methods
        if getattr(RemoteLogMetadataManagerServicer, method.name) is getattr(NotServed, method.name)
    }
    assert documented == set(NOT_SERVED)
