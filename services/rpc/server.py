"""A service process: gRPC, health on its own port, metrics, a clean end on SIGTERM.

Each service's `__main__` builds its servicer and calls `serve`; nothing else is above this.
"""

import gc
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import grpc
import prometheus_client
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.api.errors import RemoteStorageError
from services.rpc.channels import CHANNEL_OPTIONS
from services.rpc.interceptor import CallInterceptor
from services.rpc.settings import ServiceSettings

READINESS_INTERVAL_S = 1.0
LIVENESS = "liveness"
_log = logging.getLogger("sediment.server")
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass(frozen=True, slots=True)
class Service:
    """What a service gives to its process.

    Attributes:
        name: "rsm", "rlmm" or "rlm".
        full_name: of the gRPC service, for health and reflection.
        add_to: registers the servicer with a server.
        check: raises RemoteStorageError where what the service needs cannot be used; must end by
            itself.
        close: frees what the service holds; called once, after the last call.
        client_stream_threads: calls served at once of which the caller streams to us.
    """

    name: str
    full_name: str
    add_to: Callable[[grpc.Server], None]
    check: Callable[[], None]
    close: Callable[[], None]
    client_stream_threads: int = 8


@dataclass(frozen=True, slots=True)
class Announcement:
    """The line that a service prints once it is ready; addresses are HOST:PORT."""

    service: str
    address: str
    health: str
    metrics: str


def serve(service: Service, settings: ServiceSettings) -> None:
    """Serve until SIGTERM or SIGINT; then refuse new calls, let those under way end, return.

    Prints the Announcement as one line of JSON on standard output when `check` first passes. Until
    then, and whenever it fails again, health says NOT_SERVING and the log says why.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with ExitStack() as cleanup:
        cleanup.callback(service.close)
        # Started before the calls that they tell of, so that they end after them.
        health_servicer, health_address = _start_health(settings, cleanup)
        metrics_address = _start_metrics(settings.metrics_address, cleanup)
        address = start_grpc(service, settings, cleanup)
        cleanup.callback(_set_readiness, service, health_servicer, _NOT_SERVING)
        # Modules and connections stay: the collector need not look at them again and again.
        gc.collect()
        gc.freeze()
        announcement = Announcement(service.name, address, health_address, metrics_address)
        _watch_readiness(service, health_servicer, announcement, stopping)
        _log.info("stopping", extra={"service": service.name})


def start_grpc(service: Service, settings: ServiceSettings, cleanup: ExitStack) -> str:
    """Serve the service's gRPC until `cleanup` unwinds, which drains it; answer its HOST:PORT."""
    threads_in, threads_out = service.client_stream_threads, settings.stream_threads
    streams_in = cleanup.enter_context(ThreadPoolExecutor(threads_in, "stream-in"))
    streams_out = cleanup.enter_context(ThreadPoolExecutor(threads_out, "stream-out"))
    unary_pool = cleanup.enter_context(ThreadPoolExecutor(settings.unary_threads, "unary"))
    server = grpc.server(
        unary_pool,
        interceptors=[CallInterceptor(streams_in, streams_out)],
        options=[
            *CHANNEL_OPTIONS,
            ("grpc.so_reuseport", 0),
            # Our clients ask every 30 s whether a quiet peer is still there. gRPC takes more than
            # one in five minutes for an attack, and hangs up.
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ],
        maximum_concurrent_rpcs=4 * (settings.unary_threads + threads_in + threads_out),
    )
    service.add_to(server)
    reflection.enable_server_reflection([service.full_name, reflection.SERVICE_NAME], server)
    address = _bind(server, settings.listen_address)
    server.start()
    cleanup.callback(lambda: server.stop(settings.drain_timeout_ms / 1000).wait())
    return address


def _bind(server: grpc.Server, address: str) -> str:
    """Bind and answer HOST:PORT with the port that was given.

    Raises:
        SystemExit: somebody else listens there, or it is no address of this machine.
    """
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as e:
        raise SystemExit(f"cannot listen on {address}") from e
    return f"{address.rpartition(':')[0]}:{port}"


def _start_health(
    settings: ServiceSettings, cleanup: ExitStack
) -> tuple[health.HealthServicer, str]:
    servicer = health.HealthServicer(experimental_non_blocking=True)
    servicer.set("", _NOT_SERVING)
    servicer.set(LIVENESS, _SERVING)
    pool = cleanup.enter_context(ThreadPoolExecutor(2, "health"))
    # Sharing the port with another process would have it answer for us.
    server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = _bind(server, settings.health_address)
    server.start()
    cleanup.callback(lambda: server.stop(0).wait())
    return servicer, address


def _start_metrics(address: str, cleanup: ExitStack) -> str:
    host, _, port = address.rpartition(":")
    try:
        server, thread = prometheus_client.start_http_server(int(port), host.strip("[]"))
    except OSError as e:
        raise SystemExit(f"cannot listen on {address}: {e.strerror}") from e

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    cleanup.callback(stop)
    return f"{host}:{server.server_port}"


def _watch_readiness(
    service: Service,
    health_servicer: health.HealthServicer,
    announcement: Announcement,
    stopping: threading.Event,
) -> None:
    announced, before = False, "not checked yet"
    while not stopping.is_set():
        error = _check_error(service)
        trouble = _text_of(error)
        _set_readiness(service, health_servicer, _NOT_SERVING if error else _SERVING)
        if not error and not announced:
            sys.stdout.write(json.dumps(asdict(announcement)) + "\n")
            sys.stdout.flush()
            announced = True
        if trouble != before:
            _log.warning(
                f"not ready: {trouble}" if error else "ready",
                extra={"service": service.name},
                exc_info=None if isinstance(error, RemoteStorageError) else error,
            )
            before = trouble
        stopping.wait(READINESS_INTERVAL_S)


def _set_readiness(
    service: Service,
    health_servicer: health.HealthServicer,
    status: health_pb2.HealthCheckResponse.ServingStatus.ValueType,
) -> None:
    """Liveness stays as it is: a process that drains must not be killed for it."""
    health_servicer.set("", status)
    health_servicer.set(service.full_name, status)


def _check_error(service: Service) -> Exception | None:
    """What is wrong with what the service needs, or with the check itself; None: nothing."""
    try:
        service.check()
    except Exception as e:  # noqa: BLE001 - a boundary: no check may end the process
        return e
    return None


def _text_of(error: Exception | None) -> str:
    if error is None:
        return ""
    return str(error) if isinstance(error, RemoteStorageError) else repr(error)
