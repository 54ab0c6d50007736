"""Run the command `sediment`, in this process or as a process of its own."""

import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from typer.testing import CliRunner

from services.cli.main import app
from services.cli.output import reported
from services.local.stack import own_environment
from tests.harness.printed_documents import check_printed

Completed = subprocess.CompletedProcess[str]

_TIMEOUT_S = 600
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def sediment(*arguments: object, environment: Mapping[str, str] | None = None) -> Completed:
    """Run a command in this process to its end, with its own output, environment and exit code.

    Args:
        environment: set beside this process's own, without its services' settings.
    """
    command = [str(argument) for argument in arguments]
    wanted = own_environment(environment or {})
    changes: dict[str, str | None] = dict.fromkeys(os.environ.keys() - wanted.keys())
    exit_code = 0
    with _own_process_state(), CliRunner().isolation(env={**changes, **wanted}) as streams:
        try:
            with reported():
                app(args=command, prog_name="sediment")
        except SystemExit as e:
            exit_code = e.code if isinstance(e.code, int) else int(e.code is not None)
        except Exception:  # noqa: BLE001 - what the interpreter does with what nobody catches
            traceback.print_exc()
            exit_code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        output, errors = (stream.getvalue().decode() for stream in streams[:2])
    check_printed(command, output)
    return subprocess.CompletedProcess(["sediment", *command], exit_code, output, errors)


def sediment_process(*arguments: object, environment: Mapping[str, str] | None = None) -> Completed:
    """Run a command as a process of its own to its end, for effects that only a process shows."""
    command = list(map(str, arguments))
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *command],
        env=own_environment(environment or {}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    check_printed(command, done.stdout)
    return done


@contextmanager
def _own_process_state() -> Iterator[None]:
    """Restore the state of the process that a command changes: signal handlers and logging."""
    handlers = {each: signal.getsignal(each) for each in _SIGNALS}
    root = logging.getLogger()
    logging_before = (root.level, list(root.handlers))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        root.setLevel(logging_before[0])
        root.handlers[:] = logging_before[1]
