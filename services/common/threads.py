"""Start the threads that serve beforehand, and end the process when one that must live has died."""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

_log = logging.getLogger("sediment.threads")


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool all of whose threads run, so that `submit` never starts one.

    gRPC submits each call in its serving thread: an error there ends it.

    Raises:
        SystemExit: the machine refuses that many threads.
    """
    pool = ThreadPoolExecutor(threads, name)
    all_run = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(all_run.wait)
        all_run.wait()
    except RuntimeError as e:
        all_run.abort()
        pool.shutdown(wait=False)
        raise SystemExit(
            f"cannot start {threads} threads {name}: {e}; raise the limit of processes (ulimit -u, "
            "pids.max, podPidsLimit), or lower the *_THREADS settings"
        ) from e
    return pool


def end_process_with_threads() -> None:
    """End this process, from now on, when an error that no code handles ends one of its threads.

    Our threads handle every error from which they can continue, so the thread is lost for good, and
    the process would look healthy without it. Whatever runs the process starts it again.
    """
    threading.excepthook = _end


def outlive_threads() -> None:
    """Let this process end by itself: it stops."""
    threading.excepthook = threading.__excepthook__


def end_without(what: str, error: BaseException) -> None:
    """End this process if it serves: `what` is lost until it starts again."""
    if threading.excepthook is _end:
        _end_process(what, error)


def _end(failed: threading.ExceptHookArgs) -> None:
    name = "unknown" if failed.thread is None else failed.thread.name
    _end_process(f"thread {name}", failed.exc_value)


def _end_process(what: str, error: BaseException | None) -> None:
    try:
        _log.critical(f"lost {what}: %r; ending this process", error, exc_info=error)
    finally:
        # Not sys.exit: an orderly stop would wait for what is lost.
        os._exit(1)
