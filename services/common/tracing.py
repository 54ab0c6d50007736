"""Continue the traces of calls, and begin those of tasks, if the process sends traces anywhere.

A trace travels with the call that a thread serves (`Call.trace`), as its request id does: work in
other threads that names the call is in its trace, too. Without a tracer nothing is recorded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from services.api.calls import current_call, serving

if TYPE_CHECKING:  # The extra `tracing` may not be installed.
    from services.common.open_telemetry import Attributes, Headers, Span, Tracer


class _Process:
    """The tracer of this process, set once before it serves."""

    tracer: "Tracer | None" = None


def use(tracer: "Tracer | None") -> None:
    """Record spans by this tracer from now on; None records none."""
    _Process.tracer = tracer


def begin_call(name: str, headers: "Headers") -> "Span | None":
    """Begin the span of a served call; None if nothing is recorded."""
    return None if _Process.tracer is None else _Process.tracer.serve(name, headers)


def call_headers() -> "Headers":
    """Return the headers that let a call continue the trace of the call being served."""
    trace = current_call().trace
    if _Process.tracer is None or trace is None:
        return ()
    return _Process.tracer.headers(trace)


def is_recorded() -> bool:
    """Return whether the requests of the call being served are recorded."""
    tracer, trace = _Process.tracer, current_call().trace
    return tracer is not None and trace is not None and tracer.records(trace)


@contextmanager
def task(name: str, attributes: "Attributes") -> Iterator[None]:
    """Record the block as a trace of its own: work that no call asked for."""
    tracer = _Process.tracer
    if tracer is None:
        yield
        return
    span = tracer.begin(name, None, attributes, is_client=False)
    with _ending(span), serving(replace(current_call(), trace=span.trace)):
        yield


@contextmanager
def request(name: str, attributes: "Attributes") -> Iterator[None]:
    """Record the block as a request to a store or a database, if its call is recorded."""
    tracer, trace = _Process.tracer, current_call().trace
    if tracer is None or trace is None or not tracer.records(trace):
        yield
        return
    with _ending(tracer.begin(name, trace, attributes, is_client=True)):
        yield


@contextmanager
def _ending(span: "Span") -> Iterator[None]:
    error = "ended early"
    try:
        yield
        error = ""
    except BaseException as e:
        error = f"{type(e).__name__}: {e}"
        raise
    finally:
        span.end({}, error)
