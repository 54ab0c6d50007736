"""Children that are forked beside running gRPC, as PySpark forks Java, start and end."""

import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from subprocess import Popen

import grpc
import pytest

import spark_jobs  # noqa: F401  # decides what gRPC does at a fork, for tests that run alone

FORKS = 200
HANG_SECONDS = 60


@pytest.mark.deep
def test_children_start_while_calls_are_made() -> None:
    with calls_all_the_time():
        codes = [forked() for _ in range(FORKS)]

    assert codes == [0] * FORKS


def forked() -> int:
    # A function to run before exec() is what makes Python call fork(): so does PySpark.
    with Popen(["true"], preexec_fn=ignore_interrupts) as child:
        return child.wait(HANG_SECONDS)


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def calls_all_the_time() -> Iterator[None]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ended = threading.Event()

    def call() -> None:
        while not ended.is_set():
            channel = grpc.insecure_channel(f"127.0.0.1:{port}")
            with channel, pytest.raises(grpc.RpcError):
                channel.unary_unary("/a/b", bytes, bytes)(b"", timeout=HANG_SECONDS)

    with futures.ThreadPoolExecutor(2) as callers:
        calling = [callers.submit(call) for _ in range(2)]
        try:
            yield
        finally:
            ended.set()
    server.stop(None).wait()
    for caller in calling:
        caller.result()
