"""Provide the fair opponent: an empty unary call on a bare grpcio server, in a process of its
own.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.empty_pb2 import Empty

from services.local.process import ChildProcess
from services.local.stack import own_environment
from services.rlmm.settings import RlmmSettings

SERVICE, METHOD = "bench.Opponent", "Empty"
START_TIMEOUT_MS = 60_000
THREADS = int(RlmmSettings.model_fields["unary_threads"].default)
"""The number of RLMM's threads."""


@dataclass(frozen=True)
class EmptyCalls:
    """A Workload: empty calls to `address`, HOST:PORT."""

    address: str

    def caller(self, number: int) -> Callable[[], int]:
        channel = grpc.insecure_channel(self.address)
        call = channel.unary_unary(
            f"/{SERVICE}/{METHOD}",
            request_serializer=Empty.SerializeToString,
            response_deserializer=Empty.FromString,
        )
        request = Empty()

        def once() -> int:
            call(request)
            return 1

        return once


@dataclass(frozen=True)
class EmptyServer:
    calls: EmptyCalls
    pid: int


@contextmanager
def running_empty_server(directory: Path) -> Iterator[EmptyServer]:
    """Start the server, and kill it at the end."""
    command = [sys.executable, "-m", __spec__.name]
    directory.mkdir(parents=True, exist_ok=True)
    process = ChildProcess("empty-rpc", command, directory, own_environment({}))
    process.start()
    try:
        process.wait_until_ready(lambda: "\n" in process.stdout_path.read_text(), START_TIMEOUT_MS)
        yield EmptyServer(EmptyCalls(process.stdout_path.read_text().strip()), process.pid)
    finally:
        process.kill()


def _serve() -> None:
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: Empty(),
        request_deserializer=Empty.FromString,
        response_serializer=Empty.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(THREADS))
    # As generated code does; grpc-stubs does not declare it.
    server.add_registered_method_handlers(SERVICE, {METHOD: handler})  # type: ignore[attr-defined]
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    _serve()
