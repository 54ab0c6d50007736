"""Run a service in several processes behind one port: start them, watch them, end them.

The parent serves health, metrics and the announcement, and no call of the service. The kernel gives
each new connection to one of the processes, which listen with SO_REUSEPORT.
"""

import json
import logging
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Event, Thread
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from services.api.errors import RetriableRemoteStorageError
from services.common.addresses import split_address
from services.common.settings import DividedSettings
from services.rpc.server.merged_metrics import Merged, Page, counted, merged, own_page
from services.rpc.server.metrics_server import start_metrics
from services.rpc.server.part import PAGE, STATE, Part, part_in
from services.rpc.server.readiness import Checks
from services.rpc.server.server import Announcement, start_health, stop_on_signals
from services.rpc.server.transport import open_transport

SettingsT = TypeVar("SettingsT", bound=DividedSettings)

RESTART_INTERVAL_S = 5.0
"""The least time between two starts of a process that ends by itself."""

AWAY_S = 30.0
"""How long one process may not be ready, while another is, before the service is not."""

HUNG_S = 60.0
"""A process that answers nothing for so long is killed, as a liveness probe would."""

ANSWER_TIMEOUT_S = 5.0
_START_POLL_S = 0.05
_START_WAIT_S = 3.0
_RECEIVED_BYTES = 1 << 20
_POLL_S = 1.0
_log = logging.getLogger("sediment.processes")


def run(
    name: str, full_name: str, settings: SettingsT, serve_part: Callable[[SettingsT, Part], None]
) -> None:
    """Serve in this process, or as the parent of several, as the settings say.

    Args:
        name: of the service, whose module services.NAME a child runs.
        full_name: of the gRPC service, for health.
        serve_part: serves with the settings of a part, until a signal.
    """
    part = part_in(sys.argv[1:])
    if part.has_parent:
        own = settings.part_of(part.processes)
        listening = {"listen_address": part.address, "token_listen_address": part.tokens}
        serve_part(own.model_copy(update=listening), part)
    elif settings.process_count == 1:
        serve_part(settings, part)
    else:
        _serve_in_processes(name, full_name, settings)


def _serve_in_processes(name: str, full_name: str, settings: DividedSettings) -> None:
    """Serve until SIGTERM or SIGINT, then let all processes drain.

    Raises:
        SystemExit: a port is taken, or a process ended by itself before it was ready.
    """
    stopping = stop_on_signals()
    with ExitStack() as cleanup:
        transport = open_transport(settings)
        readiness, health_address = start_health(name, full_name, settings, cleanup)
        address = _reserve(settings.listen_address, cleanup)
        tokens = settings.token_listen_address
        part = Part(
            processes=settings.process_count,
            address=address,
            tokens=None if tokens is None else _reserve(tokens, cleanup),
        )
        children = Children(name, part, stopping)
        cleanup.callback(children.stop)
        registry = CollectorRegistry()
        registry.register(Merged(children.page))
        metrics_address = start_metrics(settings.metrics_address, cleanup, transport, registry)
        readiness.announcement = Announcement(
            name, address, health_address, metrics_address, part.tokens or ""
        ).line
        cleanup.callback(readiness.end)
        checks = Checks(children.check, readiness, stopping)
        checks.run_first()
        checks.watch("its processes")
        _log.info("stopping", extra={"service": name})
    children.raise_failure()


def _reserve(address: str, cleanup: ExitStack) -> str:
    """Bind an address without listening, until `cleanup` unwinds; return its HOST:PORT.

    The bind fails if another process listens there. From then on no process of another user can,
    for SO_REUSEPORT asks for the same one.

    Raises:
        SystemExit: the port is in use, or the address does not belong to this machine.
    """
    host, port = split_address(address)
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = cleanup.enter_context(socket.socket(family))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        # Not before: it would let the bind succeed beside another service of this user.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as e:
        raise SystemExit(
            f"cannot listen on {address}: {e.strerror}; set another listen address"
        ) from e
    return f"{address.rpartition(':')[0]}:{bound.getsockname()[1]}"


class _Child:
    """One of the processes of a service, started again whenever it ends by itself.

    Attributes:
        problem: why it is not ready; "" if it is.
        ready_s: when it was last ready, on the clock of time.monotonic.
        exit_code: of a process that ended by itself, before it was ever ready; None if none did.
    """

    def __init__(self, name: str, part: Part, stopping: Event) -> None:
        self.problem = "not started yet"
        self.ready_s = time.monotonic()
        self.exit_code: int | None = None
        self._name = f"process {part.number + 1} of {part.processes}"
        self._command = [sys.executable, "-m", f"services.{name}"]
        self._part = part
        self._stopping = stopping
        self._was_ready = False
        self._past: Page = []
        self._page: Page = []
        self._page_came = Event()
        self._link, self._process = self._started()
        self._thread = Thread(target=self._keep, name=self._name, daemon=True)
        self._thread.start()

    def terminate(self) -> None:
        self._process.terminate()

    def join(self) -> None:
        self._thread.join()

    def ask_page(self) -> None:
        self._page_came.clear()
        self._ask(PAGE)

    def pages(self, until_s: float) -> list[Page]:
        """Return the counts of earlier processes, and the metrics of this one, or its last ones."""
        self._page_came.wait(max(until_s - time.monotonic(), 0))
        return [self._past, self._page]

    def _started(self) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
        ours, theirs = socket.socketpair()
        with theirs:
            part = replace(self._part, link=theirs.fileno())
            process = subprocess.Popen(
                [*self._command, *part.arguments()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return ours, process

    def _keep(self) -> None:
        while True:
            began_s = time.monotonic()
            with self._link:
                self._listen()
            code = self._process.wait()
            self.problem = f"{self._name} has ended"
            self._past, self._page = merged([self._past, counted(self._page)]), []
            if self._stopping.is_set():
                return
            if code > 0 and not self._was_ready:
                self.exit_code = code
                self._stopping.set()
                return
            _log.error("%s ended with %d; starting it again", self._name, code)
            if self._stopping.wait(max(began_s + RESTART_INTERVAL_S - time.monotonic(), 0)):
                return
            self._link, self._process = self._started()

    def _listen(self) -> None:
        """Ask for the state, and take answers, until the process ends."""
        answered_s, received = math.inf, b""
        while True:
            self._link.settimeout(_START_POLL_S if self.problem else _POLL_S)
            try:
                data = self._link.recv(_RECEIVED_BYTES)
            except TimeoutError:
                silent_s = time.monotonic() - answered_s
                if silent_s > HUNG_S:
                    _log.error("%s has not answered for %.0f s; killing it", self._name, HUNG_S)
                    self._process.kill()
                    return
                if silent_s > ANSWER_TIMEOUT_S:
                    self.problem = f"{self._name} does not answer"
                if self._stopping.is_set():  # It may have started after `terminate`.
                    self.terminate()
                self._ask(STATE)
                continue
            except OSError:
                return
            if not data:
                return
            answered_s = time.monotonic()
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, answer: dict[str, Any]) -> None:
        if PAGE in answer:
            self._page = answer[PAGE]
            self._page_came.set()
            return
        self.problem = answer[STATE]
        if not self.problem:
            self._was_ready, self.ready_s = True, time.monotonic()

    def _ask(self, what: str) -> None:
        with suppress(OSError):  # It has ended, or is full of questions: `_listen` notices.
            self._link.sendall(f"{what}\n".encode())


class Children:
    """The processes of a service."""

    def __init__(self, name: str, part: Part, stopping: Event) -> None:
        """Start as many processes as `part` says; each has a number of its own."""
        self._stopping = stopping
        self._were_ready = False
        numbers = range(part.processes)
        self._children = [_Child(name, replace(part, number=n), stopping) for n in numbers]

    def check(self) -> None:
        """Check that all processes are ready, or that one is and no other is away for long.

        So a process that is started again is no outage, and one that cannot start shows.

        Raises:
            RetriableRemoteStorageError: why a process is not ready.
        """
        waits_until_s = time.monotonic() + _START_WAIT_S
        while not self._were_ready and self._away() and time.monotonic() < waits_until_s:
            if self._stopping.wait(_START_POLL_S):
                break
        away = self._away()
        since_s = time.monotonic() - AWAY_S
        is_served = self._were_ready and len(away) < len(self._children)
        if away and not (is_served and all(child.ready_s > since_s for child in away)):
            raise RetriableRemoteStorageError(away[0].problem)
        self._were_ready = True

    def page(self) -> Page:
        """Return the metrics of all processes together, the parent's memory and time included."""
        for child in self._children:
            child.ask_page()
        until_s = time.monotonic() + ANSWER_TIMEOUT_S
        pages = [page for child in self._children for page in child.pages(until_s)]
        return merged([own_page("process_"), *pages])

    def stop(self) -> None:
        """Let all processes drain, and wait for their ends."""
        self._stopping.set()
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.join()

    def raise_failure(self) -> None:
        """Raise SystemExit with the code of a process that could not start, if there is one."""
        for child in self._children:
            if child.exit_code is not None:
                raise SystemExit(child.exit_code)

    def _away(self) -> Sequence[_Child]:
        return [child for child in self._children if child.problem]
