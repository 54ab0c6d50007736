"""A signal ends a job as stopped, whatever fails while the job cleans up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_jobs.launch import stopped_by_signals
from spark_jobs.sweeps.sweep_error import SweepError


@contextmanager
def failing_clean_up() -> Iterator[None]:
    """Fail as the next call to a JVM does of which a signal has cut off a call."""
    try:
        yield
    finally:
        raise SweepError("Spark: Answer from Java side is empty")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_counts_more_than_a_clean_up_that_fails_after_it(number: signal.Signals) -> None:
    with pytest.raises(SweepError) as caught, stopped_by_signals("stopped"), failing_clean_up():
        signal.raise_signal(number)
    assert (str(caught.value), caught.value.exit_code) == ("stopped", 128 + number)


def test_a_failure_without_a_signal_stays_as_it_is() -> None:
    with (
        pytest.raises(SweepError, match="Answer from Java"),
        stopped_by_signals("stopped"),
        failing_clean_up(),
    ):
        pass
