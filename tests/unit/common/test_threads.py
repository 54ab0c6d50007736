"""Test the threads that must live, each in a process of its own."""

import subprocess
import sys
import textwrap
import threading

from services.common.threads import started_pool


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_started_pool_starts_no_thread_later() -> None:
    with started_pool(3, "pool") as pool:
        before = {thread.ident for thread in threading.enumerate()}
        used = set(pool.map(lambda _: threading.get_ident(), range(30)))
        assert used <= before


def test_threads_that_the_machine_refuses_are_one_line() -> None:
    # Root is not bound by the limit.
    done = run("""
        import os, resource
        from services.common.threads import started_pool
        if os.geteuid() == 0:
            os.setuid(65_534)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        started_pool(4, "unary")
    """)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line) == (
        1,
        "cannot start 4 threads unary: can't start new thread; raise the limit of processes "
        "(ulimit -u, pids.max, podPidsLimit), or lower the *_THREADS settings",
    )


def test_an_error_that_ends_a_thread_ends_the_process() -> None:
    done = run("""
        from threading import Event, Thread
        from services.common.threads import end_process_with_threads
        end_process_with_threads()
        Thread(target=lambda: {}["absent"], name="lane").start()
        Event().wait()
    """)
    assert done.returncode == 1
    assert "lost thread lane: KeyError('absent'); ending this process" in done.stderr


def test_the_end_of_the_serving_thread_of_grpc_ends_the_process() -> None:
    done = run("""
        import grpc
        from concurrent.futures import ThreadPoolExecutor
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc
        from services.common.threads import end_process_with_threads
        end_process_with_threads()
        pool = ThreadPoolExecutor(1)
        server = grpc.server(pool)
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        pool.shutdown()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    """)
    assert done.returncode == 1
    assert "cannot schedule new futures after shutdown" in done.stderr
    assert "ending this process" in done.stderr


def test_the_end_of_a_thread_of_tasks_ends_the_process() -> None:
    done = run("""
        import time
        from threading import Event, current_thread
        from services.common.retry import Backoff
        from services.common.threads import end_process_with_threads
        from services.rlm.scheduler import Scheduler

        def clock():
            if current_thread().name == "lane":
                raise MemoryError("no memory")
            return time.monotonic()

        end_process_with_threads()
        scheduler = Scheduler(Backoff(), clock)
        scheduler.lane("lane", 1, 30.0).schedule("p", lambda: None)
        scheduler.start()
        Event().wait(60)
    """)
    assert done.returncode == 1
    assert "lost thread lane: MemoryError('no memory'); ending this process" in done.stderr


def test_a_process_that_stops_outlives_its_threads() -> None:
    done = run("""
        from threading import Thread
        from services.common.threads import end_process_with_threads, outlive_threads
        end_process_with_threads()
        outlive_threads()
        late = Thread(target=lambda: {}["absent"])
        late.start()
        late.join()
        print("ended by itself")
    """)
    assert (done.returncode, done.stdout) == (0, "ended by itself\n")
