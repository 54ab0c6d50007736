"""Run a service process: gRPC, health and metrics, readiness, and an orderly stop on SIGTERM."""

import gc
import json
import logging
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from services.common import tracing
from services.common.release import release
from services.common.settings import IDENTITY_SHARE_PERCENT, ServiceSettings
from services.common.threads import end_process_with_threads, outlive_threads, started_pool
from services.rpc.client.channel import CHANNEL_OPTIONS
from services.rpc.client.probe import (
    CLOCK_KEY,
    NOTES_KEY,
    READY_KEY,
    UNREADY,
    VERSION_KEY,
    notes_to_bytes,
    now_ms,
)
from services.rpc.server.access import Access, open_access
from services.rpc.server.admission import AdmissionQueue, Watchdog
from services.rpc.server.interceptor import REFUSAL_THREADS, CallInterceptor, CallKinds
from services.rpc.server.metrics_server import start_metrics
from services.rpc.server.part import WHOLE, Part
from services.rpc.server.readiness import (
    NOT_SERVING,
    SERVING,
    Checks,
    Readiness,
)
from services.rpc.server.sockets import max_descriptors, raise_descriptor_limit
from services.rpc.server.transport import Transport, bind, open_transport

# Calls that may wait: a stream is served for long, a unary call usually is not.
WAITING_PER_STREAM_THREAD = 2
WAITING_PER_UNARY_THREAD = 3
MAX_CALLS_OF_A_CONNECTION = 256

# Of a unary call whose client sets none; its request has to arrive in that time.
DEFAULT_DEADLINE_S = 30.0

# gRPC's clients wait as long for a connection; its servers wait for two minutes by default.
HANDSHAKE_TIMEOUT_MS = 20_000

# Who only probes connects again; a Watch is not idle.
HEALTH_IDLE_TIMEOUT_MS = 10_000

# Some 15 KB of memory each while they do nothing.
MAX_HEALTH_CONNECTIONS = 4_096

# A health request is tiny, and probes must find a thread even if a client opens empty calls.
HEALTH_REQUEST_TIMEOUT_S = 1.0

# The time for gRPC to release calls that it has ended.
ENDED_CALLS_TIMEOUT_S = 30.0
LIVENESS = "liveness"
_MAX_CONNECTIONS = "grpc.max_allowed_incoming_connections"
_log = logging.getLogger("sediment.server")


@dataclass(frozen=True, slots=True)
class Service:
    """The description of a service for its process.

    Attributes:
        name: "rsm", "rlmm" or "rlm".
        full_name: of the gRPC service, for health and reflection.
        add_to: registers the servicer with a server.
        check: raises RemoteStorageError if a dependency of the service cannot be used. The service
            is not ready while a check takes too long; a check may still run at `close`.
        close: releases the resources of the service; called once, after the last call.
        client_stream_threads: the most concurrent calls whose clients stream to us.
        stop_waiting: ends the waits of calls that outlasted the drain, and later waits as well;
            called once, before their threads are joined.
        watch_methods: the methods, as gRPC names them, whose calls last until one side ends them.
        watch_threads: the most concurrent calls of these methods.
        end_watches: ends these calls, and what other calls wait for, and later ones as well; called
            once, before the drain.
        listens: called once, with the HOST:PORT on which gRPC is served.
    """

    name: str
    full_name: str
    add_to: Callable[[grpc.Server], None]
    check: Callable[[], None]
    close: Callable[[], None]
    client_stream_threads: int = 8
    stop_waiting: Callable[[], None] = lambda: None
    watch_methods: Collection[str] = ()
    watch_threads: int = 1
    end_watches: Callable[[], None] = lambda: None
    listens: Callable[[str], None] = lambda _: None
    depends_on: str = "its dependencies"
    notes: Callable[[], Sequence[tuple[str, str]]] = tuple


@dataclass(frozen=True, slots=True)
class Threads:
    """The number of concurrent calls of each kind that a server serves, of one identity."""

    unary: int
    streams_in: int
    streams_out: int
    watches: int = 1


# A Watch occupies a thread for server streams for as long as it lasts.
HEALTH_THREADS = Threads(unary=16, streams_in=1, streams_out=8)


@dataclass(frozen=True, slots=True)
class Announcement:
    """The line that a service prints when it is ready; addresses are HOST:PORT.

    `tokens` is the port for clients with tokens, "" if there is none.
    """

    service: str
    address: str
    health: str
    metrics: str
    tokens: str

    @property
    def line(self) -> str:
        return json.dumps(asdict(self))


def stop_on_signals() -> threading.Event:
    """Prepare a process that serves; return the event that SIGTERM and SIGINT set."""
    end_process_with_threads()
    raise_descriptor_limit()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def serve(service: Service, settings: ServiceSettings, part: Part = WHOLE) -> None:
    """Serve until SIGTERM or SIGINT, then refuse new calls and drain the active ones.

    Prints the Announcement as one line of JSON on standard output when `check` first passes. Until
    then, and whenever `check` fails again, health is NOT_SERVING and the reason is logged. A part
    has no health, metrics and output of its own: its parent has, and asks for them.
    """
    stopping = stop_on_signals()
    with ExitStack() as cleanup:
        _start_tracing(service.name, settings, cleanup)
        cleanup.callback(service.close)
        transport = open_transport(settings)
        if part.has_parent:
            readiness = Readiness(service.name, service.full_name, health.HealthServicer())
            part.answer_parent(lambda: readiness.problem, stopping)
            health_address = metrics_address = ""
        else:
            # Started before the service, so that both end after it.
            readiness, health_address = start_health(
                service.name, service.full_name, settings, cleanup
            )
            metrics_address = start_metrics(settings.metrics_address, cleanup, transport)
        checks = Checks(service.check, readiness, stopping)
        checks.run_first()
        ports = start_grpc(
            service,
            settings,
            cleanup,
            transport,
            lambda: readiness.problem,
            shares_port=part.has_parent,
        )
        readiness.announcement = Announcement(
            service.name, ports.address, health_address, metrics_address, ports.tokens
        ).line
        service.listens(ports.address)
        cleanup.callback(readiness.end)
        # Modules and connections stay: the collector need not scan them again and again.
        gc.collect()
        gc.freeze()
        checks.watch(service.depends_on)
        outlive_threads()
        _log.info("stopping", extra={"service": service.name})


def _start_tracing(name: str, settings: ServiceSettings, cleanup: ExitStack) -> None:
    """Trace calls until `cleanup` unwinds, if the settings name a collector.

    Raises:
        SystemExit: the extra `tracing` is not installed.
    """
    if settings.traces_endpoint is None:
        return
    try:
        # Only here: an extra, which takes 0.16 s of CPU and 4 MiB of a process.
        from services.common.open_telemetry import connect  # noqa: PLC0415
    except ImportError as e:
        raise SystemExit(
            f"{name.upper()}_TRACES_ENDPOINT needs the extra `tracing` ({e}): "
            "pip install 'sediment[tracing]', or remove the setting"
        ) from e
    tracer, end = connect(name, release(), settings.traces_endpoint, settings.traces_sample_ratio)
    tracing.use(tracer)
    cleanup.callback(end)


@dataclass(frozen=True, slots=True)
class Ports:
    """HOST:PORT for clients with certificates (all clients in plaintext), and for tokens."""

    address: str
    tokens: str


def start_grpc(
    service: Service,
    settings: ServiceSettings,
    cleanup: ExitStack,
    transport: Transport | None = None,
    unready: Callable[[], str] = str,
    identity_share_percent: int = IDENTITY_SHARE_PERCENT,
    *,
    shares_port: bool = False,
) -> Ports:
    """Serve gRPC until `cleanup` unwinds, which drains it.

    Args:
        transport: opened from the settings if it is None.
        unready: returns why the service is not ready, "" if it is; for clients of reflection.
        identity_share_percent: the share of all calls that one identity may have, with TLS.
        shares_port: other processes of this user listen on the same port.
    """
    transport = transport or open_transport(settings)
    threads = Threads(
        settings.unary_threads,
        service.client_stream_threads,
        settings.stream_threads,
        service.watch_threads,
    )
    access = open_access(settings)
    server = _create_server(
        threads,
        DEFAULT_DEADLINE_S,
        settings,
        cleanup,
        access,
        service.watch_methods,
        published=True,
        share_percent=100 if access is None else identity_share_percent,
        connection_options=[(_MAX_CONNECTIONS, max_descriptors() // 2)],
        shares_port=shares_port,
    )
    service.add_to(server)
    names = [service.full_name, reflection.SERVICE_NAME]
    described = _SelfDescription(names, unready, service.notes)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, server)
    ports = Ports(
        transport.bind(server, settings.listen_address),
        transport.bind_tokens(server, settings.token_listen_address),
    )
    server.start()
    cleanup.callback(service.stop_waiting)
    cleanup.callback(lambda: _drain(server, settings.drain_timeout_ms / 1000))
    cleanup.callback(service.end_watches)
    return ports


def _drain(server: grpc.Server, timeout_s: float) -> None:
    if not server.stop(timeout_s).wait(timeout_s + ENDED_CALLS_TIMEOUT_S):
        _log.warning(
            "calls are still active %.0f s after they were cancelled at the end of the drain; "
            "stopping without them",
            ENDED_CALLS_TIMEOUT_S,
        )


def _create_server(
    threads: Threads,
    request_timeout_s: float,
    settings: ServiceSettings,
    cleanup: ExitStack,
    access: Access | None = None,
    watch_methods: Collection[str] = (),
    *,
    published: bool = False,
    share_percent: int = 100,
    connection_options: Collection[tuple[str, int]] = (),
    shares_port: bool = False,
) -> grpc.Server:
    """Create a server.

    Args:
        request_timeout_s: how long unary calls may take to send their request.
        access: decides who may call what; None serves everyone.
        watch_methods: as in Service.
        published: publish the numbers of its calls.
        share_percent: the share of all calls that one identity may have.
        connection_options: of gRPC, that bound the connections.
        shares_port: as in start_grpc.
    """
    idle_timeout_s = settings.stream_idle_timeout_ms / 1000

    def streams(kind: str, count: int, waiting_per_thread: int) -> AdmissionQueue:
        waiting = waiting_per_thread * count
        return AdmissionQueue(
            kind, count, waiting, idle_timeout_s, identity_share_percent=share_percent
        )

    unary = AdmissionQueue(
        "unary",
        threads.unary,
        WAITING_PER_UNARY_THREAD * threads.unary,
        request_timeout_s,
        DEFAULT_DEADLINE_S,
        identity_share_percent=share_percent,
    )
    kinds = CallKinds(
        unary,
        streams("stream-in", threads.streams_in, WAITING_PER_STREAM_THREAD),
        streams("stream-out", threads.streams_out, WAITING_PER_STREAM_THREAD),
        # No watch waits: a thread may not become free for days.
        streams("watch", threads.watches, 0),
        watch_methods,
    )
    queues = [kinds.unary, kinds.streams_in, kinds.streams_out, kinds.watches]
    # The watchdog runs until the last active call has ended.
    cleanup.enter_context(Watchdog(queues))
    for queue in queues:
        cleanup.enter_context(queue.pool)
        if published:
            queue.publish()
    refusals = cleanup.enter_context(started_pool(REFUSAL_THREADS, "refusal"))
    return grpc.server(
        refusals,
        interceptors=[CallInterceptor(kinds, refusals, access)],
        options=[
            *CHANNEL_OPTIONS,
            # Otherwise another process on the same port could answer for us.
            ("grpc.so_reuseport", int(shares_port)),
            # Pings are no attack. By default gRPC closes a connection after three in five minutes,
            # and our clients send one every 30 s to a quiet peer; under a flood it cannot close,
            # but makes an error and a GOAWAY for each ping, which costs ten times its answer.
            ("grpc.http2.max_ping_strikes", 0),
            # Further calls of a connection wait at the peer, and cost nothing here.
            ("grpc.max_concurrent_streams", MAX_CALLS_OF_A_CONNECTION),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
            *connection_options,
        ],
        # gRPC's own limit covers all kinds of call together, and is checked after the interceptor:
        # the count of a call that gRPC refused would never be released.
        maximum_concurrent_rpcs=None,
    )


def start_health(
    name: str, full_name: str, settings: ServiceSettings, cleanup: ExitStack
) -> tuple[Readiness, str]:
    """Serve the health of a service until `cleanup` unwinds; return its HOST:PORT, too."""
    # Blocking: each Watch occupies a thread, and their number is bounded.
    servicer = health.HealthServicer(experimental_non_blocking=False)
    servicer.set("", NOT_SERVING)
    servicer.set(LIVENESS, SERVING)
    # Callers here have no identity: idle connections end, and leave descriptors to others.
    most = min(MAX_HEALTH_CONNECTIONS, max_descriptors() // 4)
    server = _create_server(
        HEALTH_THREADS,
        HEALTH_REQUEST_TIMEOUT_S,
        settings,
        cleanup,
        connection_options=[
            (_MAX_CONNECTIONS, most),
            ("grpc.max_connection_idle_ms", HEALTH_IDLE_TIMEOUT_MS),
        ],
    )
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = bind(server, settings.health_address)
    server.start()
    cleanup.callback(lambda: server.stop(0).wait())
    return Readiness(name, full_name, servicer), address


class _SelfDescription:
    """Reflection, with release, readiness, clock and notes in its trailers."""

    def __init__(
        self,
        names: Collection[str],
        unready: Callable[[], str],
        notes: Callable[[], Sequence[tuple[str, str]]],
    ) -> None:
        self._reflection: Any = reflection.ReflectionServicer(names)
        self._unready = unready
        self._notes = notes

    def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:
        why = self._unready()
        notes = [*([(UNREADY, why)] if why else []), *self._notes()]
        context.set_trailing_metadata(
            (
                (VERSION_KEY, release()),
                (READY_KEY, "0" if why else "1"),
                (CLOCK_KEY, str(now_ms())),
                (NOTES_KEY, notes_to_bytes(notes)),
            )
        )
        return self._reflection.ServerReflectionInfo(request_iterator, context)
