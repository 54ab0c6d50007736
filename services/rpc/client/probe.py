"""Ask a service of which release it is, whether it is ready, and what its clock shows."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.rpc.client.calls import threads_for_stream

PROBE_TIMEOUT_S = 2.0

VERSION_KEY = "sediment-version"
READY_KEY = "sediment-ready"
CLOCK_KEY = "sediment-clock-ms"
"""Trailers of the reflection service, which every identity with a role may call."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What a service says of itself.

    Attributes:
        version: of its release; "" if it is not reachable, or of a release that does not say.
        problem: why it could not be asked; "" if it answered.
        clock_ahead_ms: by how much its clock is ahead of this one; None if it does not say.
        clock_error_ms: how wrong that may be, either way.
    """

    version: str = ""
    is_ready: bool = False
    problem: str = ""
    clock_ahead_ms: int | None = field(default=None, compare=False)
    clock_error_ms: int = field(default=0, compare=False)


def probe(channel: grpc.Channel) -> ServiceState:
    """Ask the service behind a channel once; a service that does not answer is no error."""
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    try:
        before_ms = now_ms()
        with threads_for_stream():
            call = stub.ServerReflectionInfo(requests, timeout=PROBE_TIMEOUT_S)
        for _ in call:
            pass
        return _state_of(call.trailing_metadata(), before_ms, now_ms())
    except grpc.RpcError as e:
        return ServiceState(problem=f"{e.code().name}: {e.details()}")


def now_ms() -> int:
    """Return the time of this machine's clock."""
    return time.time_ns() // 1_000_000


def _state_of(
    trailers: Iterable[tuple[str, str | bytes]] | None, before_ms: int, after_ms: int
) -> ServiceState:
    found = {key: value for key, value in trailers or () if isinstance(value, str)}
    clock = found.get(CLOCK_KEY, "")
    is_time = clock.isdecimal() and len(clock) < 20
    ahead_ms = int(clock) - (before_ms + after_ms) // 2 if is_time else None
    # A release that does not say so may well be ready.
    is_ready = found.get(READY_KEY, "1") == "1"
    error_ms = (after_ms - before_ms + 1) // 2
    return ServiceState(found.get(VERSION_KEY, ""), is_ready, "", ahead_ms, error_ms)
