"""Run a module as on a host with a wrong clock.

Usage: `python -m tests.harness.moved_clock_process FILE MODULE`. Runs MODULE as `python -m MODULE`
does, with a wall clock that is off by the number of seconds in FILE; so a test moves the clock of a
running process. Monotonic clocks are right, as on a host whose clock is set. gRPC uses the right
wall clock: its C part counts deadlines by it.
"""

import datetime
import runpy
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_NS = 1_000_000_000
_real_time, _real_time_ns = time.time, time.time_ns
_RealDatetime = datetime.datetime


def command(file: Path, module: str) -> list[str]:
    """Return the command line that starts a service."""
    return [sys.executable, "-m", "tests.harness.moved_clock_process", str(file), module]


def move(offset_s: Callable[[], int]) -> None:
    """Move time.time and time.time_ns, and the present time of datetime.

    Applies to all modules imported after this and to all code that calls `time` itself.
    """
    _keep_grpc_right()
    time.time = lambda: _real_time() + offset_s()
    time.time_ns = lambda: _real_time_ns() + offset_s() * _NS

    class MovedDatetime(_RealDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _RealDatetime.now(tz) + datetime.timedelta(seconds=offset_s())

        @classmethod
        def utcnow(cls) -> Any:
            now = _RealDatetime.now(datetime.UTC).replace(tzinfo=None)
            return now + datetime.timedelta(seconds=offset_s())

    datetime.datetime = MovedDatetime  # type: ignore[misc]


def _keep_grpc_right() -> None:
    right = SimpleNamespace(**vars(time))
    modules = [import_module(f"grpc.{name}") for name in ("_channel", "_common", "_server")]
    compiled = vars(import_module("grpc._cython"))["cygrpc"]
    for module in (compiled, *modules):
        if hasattr(module, "time"):
            vars(module)["time"] = right


def main(file: str, module: str) -> None:
    path = Path(file)
    move(lambda: int(path.read_text() or 0))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
