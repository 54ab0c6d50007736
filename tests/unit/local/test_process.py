import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from services.local.process import (
    LOOPBACK,
    ChildProcess,
    ProcessDiedError,
    ProcessError,
    last_error,
    start_on_free_ports,
)
from tests.harness.eventually import eventually
from tests.harness.processes import runs

SAYS_READY = "import sys, signal; sys.stderr.write('ready\\n'); sys.stderr.flush()\n"
WAITS = SAYS_READY + "signal.pause()"
IGNORES_SIGTERM = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + SAYS_READY
    + "while True: signal.pause()"
)
DIES = "import sys; sys.exit('FATAL: no such database: orders\\n\\tgoodbye')"


class Children:
    """Starts children from Python source, and ends them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[ChildProcess] = []

    def make(self, source: str) -> ChildProcess:
        child = ChildProcess("child", [sys.executable, "-c", source], self._directory)
        self._made.append(child)
        return child

    def ready(self, source: str) -> ChildProcess:
        child = self.make(source)
        child.start()
        child.wait_until_ready(lambda: "ready" in child.log_tail(), 10_000)
        return child

    def end(self) -> None:
        for child in self._made:
            child.kill()


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children = Children(tmp_path)
    yield children
    children.end()


def test_output_files_of_a_child_have_mode_0600(children: Children, tmp_path: Path) -> None:
    (tmp_path / "child.log").touch(0o644)
    child = children.ready(WAITS)
    for path in (child.log_path, child.stdout_path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_child_ends_on_sigterm(children: Children) -> None:
    child = children.ready(WAITS)
    child.stop(grace_s=10)
    assert child.returncode == -signal.SIGTERM


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(children: Children) -> None:
    child = children.ready(IGNORES_SIGTERM)
    child.stop(grace_s=0.2)
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_dies_early_shows_the_last_error_of_its_log(children: Children) -> None:
    child = children.make(DIES)
    child.start()
    with pytest.raises(ProcessDiedError) as raised:
        child.wait_until_ready(lambda: False, 10_000)
    assert str(raised.value) == (
        "child exited with 1 while starting: FATAL: no such database: orders; its log is "
        f"{child.log_path}"
    )
    assert "goodbye" in raised.value.__notes__[0]


def test_a_log_without_an_error_shows_its_last_line() -> None:
    assert last_error("beginning\n  ending\n\n") == "ending"
    assert last_error(" \n") == "it printed nothing"


def test_a_child_that_is_never_ready_is_killed_at_the_deadline(children: Children) -> None:
    child = children.make(WAITS)
    child.start()
    with pytest.raises(ProcessError, match="not ready after 200 ms"):
        child.wait_until_ready(lambda: False, 200)
    assert not child.is_running()


def test_a_kill_takes_the_childs_own_children_with_it(children: Children) -> None:
    source = (
        "import subprocess, sys\n"
        f"grandchild = subprocess.Popen([sys.executable, '-c', {WAITS!r}])\n"
        "print(grandchild.pid, flush=True)\n" + WAITS
    )
    child = children.ready(source)
    grandchild = int(eventually(child.stdout_path.read_text))
    child.kill()
    assert not runs(grandchild)


def test_a_second_start_is_refused_while_it_runs(children: Children) -> None:
    child = children.ready(WAITS)
    with pytest.raises(ProcessError, match="running already"):
        child.start()


def test_a_stopped_child_can_be_started_again(children: Children) -> None:
    child = children.ready(WAITS)
    child.stop()
    child.start()
    assert child.is_running()


def test_stopping_an_ended_child_is_no_error(children: Children) -> None:
    child = children.ready(WAITS)
    child.kill()
    child.stop()
    assert not child.is_running()


def test_child_left_by_a_killed_run_is_ended_before_the_next_start(children: Children) -> None:
    left = children.ready(WAITS)
    again = children.ready(WAITS)
    assert (left.is_running(), again.is_running()) == (False, True)


def test_a_start_tries_other_ports_if_one_was_taken_meanwhile() -> None:
    tried: list[int] = []

    def start(ports: Sequence[int]) -> None:
        tried.extend(ports)
        if len(tried) == 1:
            listening.append(socket.create_server((LOOPBACK, ports[0])))
            raise ProcessDiedError("address already in use")

    listening: list[socket.socket] = []
    start_on_free_ports(1, start)
    listening[0].close()
    assert len(set(tried)) == 2


def test_a_start_that_fails_on_free_ports_is_not_repeated() -> None:
    tried: list[int] = []

    def start(ports: Sequence[int]) -> None:
        tried.extend(ports)
        raise ProcessDiedError("a setting is wrong")

    with pytest.raises(ProcessDiedError, match="a setting is wrong"):
        start_on_free_ports(1, start)
    assert len(tried) == 1
