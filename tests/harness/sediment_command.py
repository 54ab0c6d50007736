"""Run the command `sediment`, and check the documents that it prints."""

import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise

from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.output import reported
from services.local.stack import own_environment
from tools.printed.fields import closed
from tools.printed.page import DOCUMENTS
from tools.printed.shared import Document

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


_CHECKED_LINES = 100
"""The lines of one command that are checked: all are made by the same code."""

_OF = {tuple(command.split()): each for each in DOCUMENTS for command in each.commands}


def check_printed(arguments: Sequence[str], output: str) -> None:
    """Assert that a command's JSON has each described field and no other."""
    if not output or not any(pair in _JSON for pair in pairwise(arguments)):
        return
    document = _document_of(arguments)
    printed = output.splitlines()[:_CHECKED_LINES] if document.is_listed else [output]
    for text in printed:
        errors = _validator(document.name).iter_errors(json.loads(text))
        problems = [f"{error.json_path}: {error.message}" for error in errors]
        assert not problems, (
            f"`sediment {' '.join(arguments)}` printed what tools/printed does not describe; "
            f"describe it there and run `make docs`: {problems}"
        )


_JSON = {(option, "json") for option in ("-o", "--output")}


def _document_of(arguments: Sequence[str]) -> Document:
    """Find what a command prints; options of all commands may come before its name."""
    for words in (*pairwise(arguments), *((each,) for each in arguments)):
        if words in _OF:
            return _OF[words]
    raise AssertionError(f"tools/printed does not describe `sediment {' '.join(arguments)}`")


@cache
def _validator(name: str) -> Draft202012Validator:
    (document,) = (each for each in DOCUMENTS if each.name == name)
    return Draft202012Validator(closed(document.schema()))
