"""Read a service's health."""

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel

_TIMEOUT_S = 5.0


def health_of(address: str, service: str = "") -> str:
    """Return SERVING or NOT_SERVING, of `service` or of the whole process.

    Raises:
        grpc.RpcError: no server responds.
    """
    with open_channel(address, PLAINTEXT) as channel:
        request = HealthCheckRequest(service=service)
        answer = HealthStub(channel).Check(request, timeout=_TIMEOUT_S)
    return str(HealthCheckResponse.ServingStatus.Name(answer.status))
