"""Send traces to an OpenTelemetry collector by OTLP over gRPC (extra `tracing`)."""

from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.common.client_security import NO_PROXY

Attributes: TypeAlias = Mapping[str, str | int]
Headers: TypeAlias = Sequence[tuple[str, str]]
EXPORT_TIMEOUT_MS = 5_000
QUEUED_SPANS = 2_048
"""Spans that wait to be sent; further ones are dropped."""


def connect(
    service: str, version: str, endpoint: str, sample_ratio: float
) -> "tuple[Tracer, Callable[[], None]]":
    """Return a tracer that sends to the collector, and the function that ends it.

    Nothing is sent yet, so that a collector that is away delays no start. The end waits for
    EXPORT_TIMEOUT_MS at most for what is not sent yet.

    Args:
        endpoint: http://HOST:PORT, or https:// for TLS; OpenTelemetry's own variables
            (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE ...) say the rest.
        sample_ratio: the share of the traces begun here that are recorded, 0 to 1; a call whose
            client has decided is recorded as the client says.
    """
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        resource=Resource.create({SERVICE_NAME: f"sediment-{service}", SERVICE_VERSION: version}),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(
        endpoint=endpoint,
        insecure=endpoint.startswith("http://"),
        timeout=EXPORT_TIMEOUT_MS / 1000,
        channel_options=NO_PROXY,  # type: ignore[arg-type]  # its annotation knows texts only
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter, max_queue_size=QUEUED_SPANS, export_timeout_millis=EXPORT_TIMEOUT_MS
        )
    )

    def end() -> None:
        # The SDK's own end waits for up to 30 s for a collector that does not answer.
        ending = Thread(target=provider.shutdown, name="end-traces", daemon=True)
        ending.start()
        ending.join(EXPORT_TIMEOUT_MS / 1000)

    return Tracer(provider.get_tracer("sediment", version)), end


class Tracer:
    """Records spans, and writes and reads the headers by which a trace crosses processes.

    These are W3C's `traceparent` and `tracestate`.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def serve(self, name: str, headers: Headers) -> "Span":
        """Begin the span of a call that came with these headers."""
        parent = self._propagator.extract(dict(headers), Context())
        return Span(self._tracer.start_span(name, parent, SpanKind.SERVER))

    def begin(self, name: str, trace: object, attributes: Attributes, *, is_client: bool) -> "Span":
        """Begin a span below `trace`; None begins a trace."""
        parent = trace if isinstance(trace, Context) else Context()
        kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
        return Span(self._tracer.start_span(name, parent, kind, attributes))

    def headers(self, trace: object) -> Headers:
        """Return the headers for a call to another process."""
        carrier: dict[str, str] = {}
        if isinstance(trace, Context):
            self._propagator.inject(carrier, trace)
        return tuple(carrier.items())

    def records(self, trace: object) -> bool:
        """Return whether spans below `trace` are recorded: it is one of the share."""
        return isinstance(trace, Context) and (
            # Not is_recording(), which ends with the span: work may outlive its call.
            get_current_span(trace).get_span_context().trace_flags.sampled
        )


class Span:
    """One timed piece of work of a trace.

    Attributes:
        trace: what spans below this one continue.
    """

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.trace: object = trace.set_span_in_context(span, Context())

    def end(self, attributes: Attributes, error: str = "") -> None:
        """End the span; `error` says why the work failed, if it did."""
        self._span.set_attributes(dict(attributes))
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()
