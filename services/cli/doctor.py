"""Check a whole deployment, and name the next command for what is wrong: `sediment doctor`."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context

import typer

from services.api.errors import RemoteStorageError
from services.cli.connections import DataDir, JsonOrTable, Rlm, Rlmm, Rsm, command_group
from services.cli.doctor_findings import Check, Finding, Level
from services.cli.doctor_services import service_checks
from services.cli.doctor_settings import Environment, environment_checks
from services.cli.endpoints import known_addresses
from services.cli.output import CommandError, Format, print_json, print_table, say

app = command_group()

_SILENT_S = 4.0
_TEXT_WIDTH = 50


@app.command()
def doctor(
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    rlm: Rlm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
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
    environment = Environment.present(data_dir)
    try:
        addresses = known_addresses({"rsm": rsm, "rlmm": rlmm, "rlm": rlm}, data_dir)
    except CommandError:
        if not environment.services:
            raise
        addresses = {}
    checks = {**environment_checks(environment), **service_checks(addresses, data_dir)}
    findings = list(run_checks(checks))
    worst = max((each.level for each in findings), default=Level.OK)
    if output is Format.JSON:
        described = [each.as_json() for each in findings]
        print_json({"level": max(worst, Level.OK).name, "findings": described})
    else:
        print_table("Doctor", ("check", "", "finding"), _rows(findings))
    raise typer.Exit(max(int(worst), 0))


def run_checks(
    checks: Mapping[str, Check],
    report: Callable[[str], None] = say,
    silent_s: float = _SILENT_S,
) -> Iterator[Finding]:
    """Run all checks at once; yield their findings in order.

    Args:
        report: is called with the names of those that still run, every `silent_s` without an end.
    """
    with ThreadPoolExecutor(max(len(checks), 1)) as pool:
        running = {
            # With what the user chose, which is of this thread's context.
            name: pool.submit(copy_context().run, _findings_of, name, check)
            for name, check in checks.items()
        }
        _wait(running, report, silent_s)
        for future in running.values():
            yield from future.result()


def _wait(
    running: Mapping[str, Future[list[Finding]]], report: Callable[[str], None], silent_s: float
) -> None:
    names = {future: name for name, future in running.items()}
    while names:
        done, _ = wait(names, timeout=silent_s, return_when=FIRST_COMPLETED)
        for future in done:
            del names[future]
        if not done:
            report(f"still checking: {', '.join(names.values())}")


def _findings_of(name: str, check: Check) -> list[Finding]:
    """Run a check; one that cannot be finished is a finding itself."""
    try:
        return list(check())
    except (RemoteStorageError, CommandError) as e:
        return [Finding(name, Level.FAIL, str(e), "check the address, the network, TLS and grants")]


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    """Yield table rows of at most 80 columns: a long text takes several."""
    for finding in findings:
        text = [finding.text, *([f"next: {finding.next}"] if finding.next else [])]
        lines = [line for part in text for line in textwrap.wrap(part, _TEXT_WIDTH)]
        for number, line in enumerate(lines):
            yield *(("", "") if number else (finding.check, finding.level.name.lower())), line
