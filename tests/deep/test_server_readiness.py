"""Test that the process continues and logs the result, whatever a check does."""

import json
import logging
import signal
from collections.abc import Iterator
from threading import Event

import grpc
import pytest

from services.api.errors import RetriableRemoteStorageError
from services.common.settings import ServiceSettings
from services.rpc.server.server import Service, serve


@pytest.fixture(autouse=True)
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def of_the_server(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the captured lines without the warning of plaintext."""
    return [record for record in caplog.records if record.name == "sediment.server"]


@pytest.mark.parametrize(
    ("error", "line", "traceback"),
    [
        (KeyError("odd"), "not ready: KeyError('odd')", True),
        (RetriableRemoteStorageError("no store"), "not ready: no store", False),
    ],
)
def test_a_check_that_fails_is_logged_and_asked_again(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    line: str,
    traceback: bool,
) -> None:
    said_before_ready: list[str] = []

    def check() -> None:
        if not of_the_server(caplog):
            raise error
        if said_before_ready:
            signal.raise_signal(signal.SIGTERM)
        else:
            said_before_ready.append(capsys.readouterr().out)

    def add(server: grpc.Server) -> None:
        """No servicer: health and readiness need none."""

    with caplog.at_level(logging.INFO, logger="sediment.server"):
        serve(Service("test", "none", add, check, lambda: None), ServiceSettings(plaintext=True))
    assert said_before_ready == [""]
    assert json.loads(capsys.readouterr().out)["service"] == "test"
    lines = [(r.getMessage(), r.exc_info is not None) for r in of_the_server(caplog)]
    assert lines == [(line, traceback), ("ready", False), ("stopping", False)]


def test_the_port_opens_when_a_check_has_passed() -> None:
    """A port that refuses attracts calls: it has the fewest."""
    checks: list[int] = []
    opened_after: list[int] = []

    def check() -> None:
        checks.append(len(opened_after))
        if len(checks) < 3:
            raise RetriableRemoteStorageError("no store")
        if opened_after:
            signal.raise_signal(signal.SIGTERM)

    def add(server: grpc.Server) -> None:
        opened_after.append(len(checks))

    serve(Service("test", "none", add, check, lambda: None), ServiceSettings(plaintext=True))
    assert opened_after == [3]


def test_a_check_that_hangs_makes_the_service_not_ready_and_holds_up_no_end(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    hung, for_ever = Event(), Event()

    def check() -> None:
        if "ready" not in [r.getMessage() for r in caplog.records]:
            return
        hung.set()
        for_ever.wait()

    class EndsOnceNotReady(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("not ready"):
                signal.raise_signal(signal.SIGTERM)

    ends = EndsOnceNotReady()
    logging.getLogger("sediment.server").addHandler(ends)
    try:
        with caplog.at_level(logging.INFO, logger="sediment.server"):
            serve(
                Service("test", "none", lambda _: None, check, lambda: None),
                ServiceSettings(plaintext=True),
            )
    finally:
        logging.getLogger("sediment.server").removeHandler(ends)
    assert hung.is_set()
    assert not for_ever.is_set()
    for_ever.set()
    lines = [r.getMessage() for r in of_the_server(caplog)]
    assert lines == [
        "ready",
        "not ready: a readiness check has not finished within 5 s: no answer from its dependencies",
        "stopping",
    ]
