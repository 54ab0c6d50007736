"""Read a service's release, readiness and clock."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.rpc.client.calls import begin_stream
from services.rpc.client.channel import peer_of
from services.rpc.statuses import details_with_hint

PROBE_TIMEOUT_S = 2.0

VERSION_KEY = "sediment-version"
READY_KEY = "sediment-ready"
CLOCK_KEY = "sediment-clock-ms"
NOTES_KEY = "sediment-notes-bin"
"""Trailers of the reflection service, which every identity with a role may call."""

_MAX_NOTES = 8
_MAX_NOTE_LENGTH = 500
"""gRPC takes 8 KiB of trailers."""


UNREADY = "UNREADY"


class Note(NamedTuple):
    """A report of a service; level: as a Severity, UNKNOWN, or UNREADY for why it is not ready."""

    level: str
    text: str


def notes_to_bytes(notes: Iterable[tuple[str, str]]) -> bytes:
    """Return the value of NOTES_KEY for the first notes."""
    listed = [(level, text[:_MAX_NOTE_LENGTH]) for level, text in notes]
    return json.dumps(listed[:_MAX_NOTES], ensure_ascii=False).encode(errors="replace")


def _notes_of(value: str | bytes) -> Sequence[Note]:
    try:
        return tuple(Note(str(level), str(text)) for level, text in json.loads(value))
    except (TypeError, ValueError):
        return ()


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a service, as it reports it.

    Attributes:
        version: of its release; "" if it is not reachable.
        problem: why it could not be reached; "" if it answered.
        clock_ahead_ms: by how much its clock is ahead of this one; None if unknown.
        clock_error_ms: how wrong that may be, either way.
        unready: why it is not ready; "" if it is, or if unknown.
        notes: what it reports of its dependencies.
    """

    version: str = ""
    is_ready: bool = False
    problem: str = ""
    clock_ahead_ms: int | None = field(default=None, compare=False)
    clock_error_ms: int = field(default=0, compare=False)
    unready: str = ""
    notes: Sequence[Note] = ()


def probe(channel: grpc.Channel) -> ServiceState:
    """Call the service behind a channel once; a service that does not answer is no error."""
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    try:
        before_ms = now_ms()
        call = begin_stream(partial(stub.ServerReflectionInfo, requests, timeout=PROBE_TIMEOUT_S))
        for _ in call:
            pass
        return _state_of(call.trailing_metadata(), before_ms, now_ms())
    except grpc.RpcError as e:
        if e.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServiceState(problem=f"no answer within {PROBE_TIMEOUT_S:g} s")
        details = details_with_hint(e, peer_of("", channel, ""))
        return ServiceState(problem=f"{e.code().name}: {details}")


def now_ms() -> int:
    """Return the time of this machine's clock."""
    return time.time_ns() // 1_000_000


def _state_of(
    trailers: Iterable[tuple[str, str | bytes]] | None, before_ms: int, after_ms: int
) -> ServiceState:
    found = {key: value for key, value in trailers or () if isinstance(value, str)}
    notes = _notes_of(dict(trailers or ()).get(NOTES_KEY, "[]"))
    clock = found.get(CLOCK_KEY, "")
    is_time = clock.isdecimal() and len(clock) < 20
    ahead_ms = int(clock) - (before_ms + after_ms) // 2 if is_time else None
    is_ready = found.get(READY_KEY) == "1"
    error_ms = (after_ms - before_ms + 1) // 2
    unready = "; ".join(note.text for note in notes if note.level == UNREADY)
    others = tuple(note for note in notes if note.level != UNREADY)
    version = found.get(VERSION_KEY, "")
    return ServiceState(version, is_ready, "", ahead_ms, error_ms, unready, others)
