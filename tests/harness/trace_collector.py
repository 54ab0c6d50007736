"""Provide an OpenTelemetry collector on a loopback port that keeps what it is sent."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc


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
