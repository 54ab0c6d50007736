"""Ask a service of which release it is, and whether it is ready."""

from collections.abc import Iterable
from dataclasses import dataclass

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

PROBE_TIMEOUT_S = 2.0

VERSION_KEY = "sediment-version"
READY_KEY = "sediment-ready"
"""Trailers of the reflection service, which every identity with a role may call."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What a service says of itself.

    Attributes:
        version: of its release; "" if it is not reachable, or of a release that does not say.
        problem: why it could not be asked; "" if it answered.
    """

    version: str = ""
    is_ready: bool = False
    problem: str = ""


def probe(channel: grpc.Channel) -> ServiceState:
    """Ask the service behind a channel once; a service that does not answer is no error."""
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    try:
        call = stub.ServerReflectionInfo(requests, timeout=PROBE_TIMEOUT_S)
        for _ in call:
            pass
        return _state_of(call.trailing_metadata())
    except grpc.RpcError as e:
        return ServiceState(problem=f"{e.code().name}: {e.details()}")


def _state_of(trailers: Iterable[tuple[str, str | bytes]] | None) -> ServiceState:
    found = {key: value for key, value in trailers or () if isinstance(value, str)}
    # A release that does not say so may well be ready.
    return ServiceState(found.get(VERSION_KEY, ""), found.get(READY_KEY, "1") == "1")
