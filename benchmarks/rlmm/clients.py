"""Run clients in processes of their own, each with one call after another."""

import multiprocessing
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

ANSWER_GRACE_S = 120.0
STOP_GRACE_S = 30.0


class Workload(Protocol):
    """The calls of clients; crosses to their processes by pickle."""

    def caller(self, number: int) -> Callable[[], int]:
        """Return a function that makes one call of client `number` and returns its operations.

        Called in the client's process, once.
        """


@dataclass(frozen=True)
class Spread:
    """A Workload of several parts, given to the clients in turn."""

    parts: Sequence[Workload]

    def caller(self, number: int) -> Callable[[], int]:
        return self.parts[number % len(self.parts)].caller(number)


@dataclass(frozen=True)
class Measured:
    """The figures of all clients together.

    Attributes:
        operations_per_s: of all of them.
        p50_s, p99_s: the time of a call that a half, and that 99 of 100, do not exceed.
    """

    operations_per_s: float
    p50_s: float
    p99_s: float


class Clients:
    """The clients of one workload. Between two runs they are idle, with their connections open."""

    def __init__(self, processes: Mapping[int, Connection]) -> None:
        self._processes = processes

    @property
    def pids(self) -> dict[str, int]:
        return {f"clients {pid}": pid for pid in self._processes}

    def run(self, seconds: float) -> Measured:
        """Run all clients for so long.

        Raises:
            RuntimeError: a client failed; its process has printed the error on standard error.
        """
        for connection in self._processes.values():
            connection.send(seconds)
        operations, elapsed_s, latencies = 0, 0.0, array("d")
        for pid, connection in self._processes.items():
            if not connection.poll(seconds + ANSWER_GRACE_S):
                raise RuntimeError(f"the clients of process {pid} do not come back")
            try:
                done = connection.recv()
            except EOFError as e:
                raise RuntimeError(f"the clients of process {pid} failed") from e
            operations += done.operations
            elapsed_s = max(elapsed_s, done.elapsed_s)
            latencies.extend(done.latencies_s)
        ordered = sorted(latencies)
        if not ordered:
            raise RuntimeError(f"no client did anything in {seconds} s: is the machine busy?")
        p50_s, p99_s = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
        return Measured(operations / elapsed_s, p50_s, p99_s)


@contextmanager
def running_clients(workload: Workload, count: int, processes: int) -> Iterator[Clients]:
    """Start `count` clients, each a thread, spread over processes.

    gRPC gives like channels of a process one connection: there are as many connections as
    processes, on both sides of a ratio.
    """
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as cleanup:
        connections = {}
        for place in range(processes):
            ours, theirs = spawn.Pipe()
            numbers = range(count)[place::processes]
            process = spawn.Process(target=_serve, args=(theirs, workload, numbers), daemon=True)
            process.start()
            theirs.close()
            cleanup.callback(process.join, STOP_GRACE_S)
            cleanup.callback(ours.close)
            connections[process.pid or 0] = ours
        yield Clients(connections)


@dataclass(frozen=True)
class _Done:
    operations: int
    elapsed_s: float
    latencies_s: "array[float]"


def _serve(orders: Connection, workload: Workload, numbers: range) -> None:
    """Run in the clients' process, for as long as each order requires, until there are no more."""
    callers = [workload.caller(number) for number in numbers]
    with ThreadPoolExecutor(len(callers)) as pool:
        while True:
            try:
                seconds = orders.recv()
            except EOFError:
                return
            started = time.perf_counter()
            deadline = started + seconds
            done = list(pool.map(_call_until, callers, [deadline] * len(callers)))
            elapsed_s = time.perf_counter() - started
            latencies = array("d")
            for _, own in done:
                latencies.extend(own)
            orders.send(_Done(sum(operations for operations, _ in done), elapsed_s, latencies))


def _call_until(caller: Callable[[], int], deadline: float) -> "tuple[int, array[float]]":
    operations, latencies = 0, array("d")
    before = time.perf_counter()
    while before < deadline:
        operations += caller()
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    return operations, latencies
