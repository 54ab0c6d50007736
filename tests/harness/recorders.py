"""Record who connects where, and the traces that services send."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc


class Trap:
    """A listener that hangs up on whoever connects, and counts them."""

    def __init__(self, listening: socket) -> None:
        self._listening = listening
        self.port: int = listening.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.reached = 0

    def serve(self) -> None:
        with suppress(OSError):  # the test is over
            while True:
                connection, _ = self._listening.accept()
                self.reached += 1
                connection.close()

    def proxies(self) -> dict[str, str]:
        """Return the variables by which proxies, and a collector of spans, are named."""
        url = f"http://{self.address}"
        names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
        return {
            **{name: url for each in names for name in (each, each.upper())},
            "no_proxy": "",
            "NO_PROXY": "",
            "no_grpc_proxy": "",
            "GRPC_ADDRESS_HTTP_PROXY": self.address,
            "GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES": "127.0.0.0/8",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url,
        }

    def of_libpq(self, directory: Path) -> dict[str, str]:
        """Return variables that libpq uses for what a URL does not name, and beside it."""
        services = directory / "services.conf"
        services.write_text(f"[trap]\nhostaddr=127.0.0.1\nport={self.port}\n")
        return {
            "PGHOST": "127.0.0.1",
            "PGHOSTADDR": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGDATABASE": "trap",
            "PGUSER": "trap",
            "PGPASSWORD": "trap",
            "PGSERVICE": "trap",
            "PGSERVICEFILE": str(services),
            "PGSSLMODE": "verify-full",
            "PGREQUIREAUTH": "gss",
            "PGTARGETSESSIONATTRS": "standby",
            "PGOPTIONS": "-c statement_timeout=1",
            "PGCLIENTENCODING": "LATIN1",
            "PGDATESTYLE": "SQL, DMY",
            "PGTZ": "Asia/Tokyo",
        }


@contextmanager
def trap() -> Iterator[Trap]:
    with socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        made = Trap(listening)
        thread = threading.Thread(target=made.serve, name="trap", daemon=True)
        thread.start()
        try:
            yield made
        finally:
            with suppress(OSError):
                listening.shutdown(2)  # wakes up accept
            thread.join()


@dataclass(frozen=True)
class CollectedSpan:
    """One span; ids are hexadecimal, `parent` is "" for the first of a trace."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, str]
    is_error: bool


@dataclass
class TraceCollector(pb_grpc.TraceServiceServicer):
    """Receives spans from any number of processes."""

    address: str = ""
    spans: list[CollectedSpan] = field(default_factory=list)

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            service = _texts(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += (_collected(service, span) for span in scope.spans)
        return pb.ExportTraceServiceResponse()

    def of(self, trace: str) -> list[CollectedSpan]:
        return [span for span in list(self.spans) if span.trace == trace]


@contextmanager
def collecting_traces() -> Iterator[TraceCollector]:
    server = grpc.server(ThreadPoolExecutor(4))
    collector = TraceCollector()
    add_to: Any = pb_grpc.add_TraceServiceServicer_to_server
    add_to(collector, server)
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def _collected(service: str, span: Any) -> CollectedSpan:
    return CollectedSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _texts(span.attributes),
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _texts(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value or str(each.value.int_value) for each in attributes}
