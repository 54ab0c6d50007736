"""Check a whole deployment, and name the next command for what is wrong: `sediment doctor`."""

import queue
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from typing import Annotated, TypeAlias

import typer

from services.api.errors import RemoteStorageError
from services.cli.connections import Call, command_group, with_services
from services.cli.doctor_findings import Check, Finding, Level
from services.cli.doctor_services import service_checks
from services.cli.doctor_settings import Environment, environment_checks
from services.cli.endpoints import known_addresses
from services.cli.output import CommandError, print_json, print_line, say

app = command_group()

_SILENT_S = 4.0
_TIMEOUT_S = 10.0
_TEXT_WIDTH = 56


@app.command()
@with_services("rsm", "rlmm", "rlm")
def doctor(
    call: Call,
    timeout_s: Annotated[
        float, typer.Option(min=1, help="How long all checks, side by side, may take, s.")
    ] = _TIMEOUT_S,
) -> None:
    """Check settings, clocks, bucket, database and certificates.

    Checks every service whose address is known. Settings (RSM_*, RLMM_*,
    RLM_*, CONSOLE_*) and what they name are checked if they are in the
    environment, or if `sediment up` runs here. Writes nothing but a few
    test objects to the bucket, and deletes them again.

    \b
    Exit codes:
      0  nothing is wrong
      1  something needs attention
      2  something does not work, or the command line is wrong
    """
    environment = Environment.present(call.data_dir)
    try:
        addresses = known_addresses(call, "rsm", "rlmm", "rlm")
    except CommandError:
        if not environment.services:
            raise
        addresses = {}
    checks = {**environment_checks(environment), **service_checks(addresses, call.data_dir)}
    findings = list[Finding]()
    for finding in run_checks(checks, timeout_s=timeout_s):
        findings.append(finding)
        if not call.is_json:
            _print(finding)
    worst = max((each.level for each in findings), default=Level.OK)
    if call.is_json:
        described = [each.as_json() for each in findings]
        print_json({"level": max(worst, Level.OK).name, "findings": described})
    raise typer.Exit(max(int(worst), 0))


_Found: TypeAlias = queue.SimpleQueue[tuple[str, Finding | Exception | None]]


def run_checks(
    checks: Mapping[str, Check],
    report: Callable[[str], None] = say,
    silent_s: float = _SILENT_S,
    timeout_s: float = _TIMEOUT_S,
) -> Iterator[Finding]:
    """Run all checks at once; yield each finding when it is there.

    A check without an end after `timeout_s` is a finding itself; its thread is left to end with the
    process, whatever it waits for.

    Args:
        report: is called with the names of those that still run, every `silent_s` without a
            finding.
    """
    found: _Found = queue.SimpleQueue()
    for name, check in checks.items():
        # With what the user chose, which is of this thread's context.
        run = copy_context().run
        arguments = (_findings_of, name, check, found)
        threading.Thread(target=run, args=arguments, name=name, daemon=True).start()
    running = dict.fromkeys(checks)
    ends_at = time.monotonic() + timeout_s
    while running and (left_s := ends_at - time.monotonic()) > 0:
        try:
            name, finding = found.get(timeout=min(silent_s, left_s))
        except queue.Empty:
            if left_s > silent_s:
                report(f"still checking: {', '.join(running)}")
            continue
        if isinstance(finding, Exception):
            raise finding
        if finding is None:
            del running[name]
        else:
            yield finding
    for name in running:
        text = f"no answer within {timeout_s:.0f} s"
        hint = "see whether what it asks runs and is reachable; or pass a longer --timeout-s"
        yield Finding(name, Level.FAIL, text, hint)


def _findings_of(name: str, check: Check, found: _Found) -> None:
    """Run a check; put its findings, and None at its end. An error of ours is a finding, too."""
    try:
        for finding in check():
            found.put((name, finding))
    except (RemoteStorageError, CommandError) as e:
        hint = "check the address, the network, TLS and grants"
        found.put((name, Finding(name, Level.FAIL, str(e), hint)))
    except Exception as e:  # noqa: BLE001 - raised in the thread that prints
        found.put((name, e))
    found.put((name, None))


def _print(finding: Finding) -> None:
    """Print a finding in lines of at most 80 columns."""
    text = [finding.text, *([f"next: {finding.next}"] if finding.next else [])]
    lines = [line for part in text for line in textwrap.wrap(part, _TEXT_WIDTH)]
    heads = [f"{finding.check:16} {finding.level.name.lower():4}", *[" " * 21] * len(lines)]
    for head, line in zip(heads, lines, strict=False):
        print_line([f"{head}  {line}"])
