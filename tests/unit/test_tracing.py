"""Test what a process without and with a tracer adds to its calls."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from services.api.calls import IN_PROCESS, serving
from services.common import tracing
from services.common.open_telemetry import connect
from services.rsm.settings import RsmSettings
from tests.harness.recorders import collecting_traces

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def tracer() -> Iterator[None]:
    with collecting_traces() as collector:
        made, end = connect("test", "1", f"http://{collector.address}", sample_ratio=0)
        tracing.use(made)
        yield
        tracing.use(None)
        end()


def headers_within(traceparent: str) -> dict[str, str]:
    """Return the headers of a call made while a call with this header is served."""
    span = tracing.begin_call("a.Service/Method", [("traceparent", traceparent)])
    assert span is not None
    with serving(replace(IN_PROCESS, trace=span.trace)):
        made = dict(tracing.call_headers())
    span.end({})
    return made


def ids(headers: dict[str, str]) -> tuple[str, str, int]:
    """Return trace, span and flags of a W3C header; the lowest flag is "sampled"."""
    version, trace, span, flags = headers["traceparent"].split("-")
    assert version == "00"
    return trace, span, int(flags, 16)


def test_without_a_tracer_nothing_is_added() -> None:
    assert tracing.begin_call("a.Service/Method", []) is None
    with tracing.task("a task", {}), tracing.request("SELECT", {}):
        assert tracing.call_headers() == ()


@pytest.mark.usefixtures("tracer")
@pytest.mark.parametrize("sampled", ["00", "01"])
def test_the_client_decides_whether_its_call_is_recorded(sampled: str) -> None:
    trace, span, flags = ids(headers_within(f"00-{TRACE}-{SPAN}-{sampled}"))
    assert (trace, flags & 1) == (TRACE, int(sampled))
    assert span != SPAN


@pytest.mark.usefixtures("tracer")
@pytest.mark.parametrize("sampled", [False, True])
def test_only_a_recorded_call_has_spans_of_its_requests(sampled: bool) -> None:
    span = tracing.begin_call(
        "a.Service/Method", [("traceparent", f"00-{TRACE}-{SPAN}-0{sampled:d}")]
    )
    assert span is not None
    with serving(replace(IN_PROCESS, trace=span.trace)):
        outside = dict(tracing.call_headers())
        with tracing.request("SELECT", {}):
            assert tracing.is_recorded() is sampled
            # Either way the trace continues.
            assert ids(dict(tracing.call_headers())) == ids(outside)
        span.end({})
        assert tracing.is_recorded() is sampled  # Work may outlive its call.


@pytest.mark.usefixtures("tracer")
@pytest.mark.parametrize("wrong", ["", "nonsense", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}"])
def test_a_malformed_header_begins_a_trace(wrong: str) -> None:
    trace, _, flags = ids(headers_within(wrong))
    assert trace != TRACE
    assert not flags & 1


@pytest.mark.usefixtures("tracer")
def test_the_error_of_a_task_passes_and_ends_its_trace() -> None:
    with pytest.raises(KeyError), tracing.task("a task", {}):
        raise KeyError("k")
    assert tracing.call_headers() == ()


@pytest.mark.parametrize(
    "endpoint", ["collector:4317", "grpc://collector:4317", "http://collector"]
)
def test_a_collector_is_named_with_scheme_and_port(endpoint: str) -> None:
    with pytest.raises(SystemExit, match="RSM_TRACES_ENDPOINT"):
        RsmSettings.from_environment({"RSM_TRACES_ENDPOINT": endpoint})
