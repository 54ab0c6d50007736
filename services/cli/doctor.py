"""Check a whole deployment, and name the next command for what is wrong: `sediment doctor`."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import TypeAlias

import typer

from services.cli.command import quantity
from services.cli.config import configured_services
from services.cli.connections import Call, command_group, with_services
from services.cli.doctor_findings import Check, Finding, Level
from services.cli.doctor_services import service_checks
from services.cli.doctor_settings import environment_checks
from services.cli.output import CommandError, print_json, print_line, say
from services.common.quantities import DURATION_S
from services.rpc.client.timeouts import SLOW_CALLS
from services.views.endpoints import ServiceAddresses
from services.views.tier import with_next

app = command_group()

_SILENT_S = 4.0
_TIMEOUT_S = 10.0
_TEXT_WIDTH = 56


@app.command()
@with_services("rsm", "rlmm", "rlm")
def doctor(
    call: Call,
    timeout_s: float = quantity(
        "--timeout", DURATION_S, "How long all checks, side by side, may take.", _TIMEOUT_S, min=1
    ),
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
    SLOW_CALLS.report = None  # What still runs is reported by check.
    services = configured_services(os.environ)
    try:
        addresses = call.known_addresses("rsm", "rlmm", "rlm")
    except CommandError:
        if not services:
            raise
        addresses = ServiceAddresses()
    checks = [*environment_checks(services, call.data_dir), *service_checks(call, addresses)]
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


_Results: TypeAlias = queue.SimpleQueue[tuple[Check, Finding | Exception | None]]


def run_checks(
    checks: Sequence[Check],
    report: Callable[[str], None] = say,
    silent_s: float = _SILENT_S,
    timeout_s: float = _TIMEOUT_S,
) -> Iterator[Finding]:
    """Run all checks at once; yield each finding as it comes.

    What another check may explain comes when all have ended. A check without an end after
    `timeout_s` is a finding itself; its thread is left to end with the process, whatever it waits
    for.

    Args:
        report: is called with the names of those that still run, every `silent_s` without a
            finding.
    """
    results: _Results = queue.SimpleQueue()
    for check in checks:
        # With what the user chose, which is of this thread's context.
        run = copy_context().run
        threading.Thread(target=run, args=(_run, check, results), daemon=True).start()
    running, ends_s = list(checks), time.monotonic() + timeout_s
    failed, unanswered = set[str](), list[Finding]()
    while running and (left_s := ends_s - time.monotonic()) > 0:
        try:
            check, result = results.get(timeout=min(silent_s, left_s))
        except queue.Empty:
            if left_s > silent_s:
                report(f"still checking: {', '.join(each.name for each in running)}")
            continue
        if isinstance(result, Exception):
            raise result
        if result is None:
            running.remove(check)
        elif result.causes:
            unanswered.append(result)
        else:
            failed |= {result.check} if result.level is Level.FAIL else set()
            yield result
    text = f"no answer within {timeout_s:.0f} s"
    hint = "check that the other side runs and is reachable; or pass a longer --timeout"
    unanswered += [Finding(each.name, Level.FAIL, text, hint, True) for each in running]
    # The causes first.
    for finding in sorted(unanswered, key=lambda each: len(each.causes)):
        judged = finding.judged(failed)
        failed |= {judged.check} if judged.level is Level.FAIL else set()
        yield judged


def _run(check: Check, results: _Results) -> None:
    """Run a check; put its findings, and at its end None or our defect."""
    try:
        for finding in check.findings():
            results.put((check, finding))
        results.put((check, None))
    except Exception as e:  # noqa: BLE001 - raised in the thread that prints
        results.put((check, e))


def _print(finding: Finding) -> None:
    """Print a finding in lines of at most 80 columns."""
    lines = with_next(finding.text, finding.next, _TEXT_WIDTH)
    heads = [f"{finding.check:16} {finding.level.name.lower():4}", *[" " * 21] * len(lines)]
    for head, line in zip(heads, lines, strict=False):
        print_line([f"{head}  {line}"])
