"""Format the measurements of rlm_faults as rows of a table."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

_WIDTH = 170
"""Characters of the table; the cells of a narrower table are not readable."""


@dataclass(frozen=True)
class Row:
    """The effect of one fault.

    Attributes:
        away_s: from the kill until all servers are started again.
        caught_up_s: from then until all segments rolled by then are in the tier.
        local_p99_before_ms, local_p99_ms: reads of data that the broker has, if RLM answered them.
        local_failed: such reads that failed while the fault lasted.
        remote_answers: the responses to reads of the tier meanwhile, and their numbers.
        remote_slowest_s: the time of the slowest of these reads.
        log_lines, growth_mib: of RLM while the fault lasted; None if RLM itself was killed.
    """

    fault: str
    away_s: float
    caught_up_s: float
    local_p99_before_ms: float
    local_p99_ms: float | None
    local_failed: int
    remote_answers: dict[str, int]
    remote_slowest_s: float
    log_lines: int | None
    growth_mib: float | None

    @property
    def ratio(self) -> float:
        return self.caught_up_s / self.away_s


def print_rows(rows: Sequence[Row]) -> None:
    table = Table(title="rlm_faults", title_justify="left")
    for column in (
        "fault",
        "away, s",
        "caught up after, s",
        "ratio",
        "local reads p99, ms, before → meanwhile (failed)",
        "reads of the tier meanwhile",
        "slowest, s",
        "log lines",
        "grew by, MiB",
    ):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            row.fault,
            f"{row.away_s:.1f}",
            f"{row.caught_up_s:.1f}",
            f"{row.ratio:.2f}",
            f"{row.local_p99_before_ms:.0f} → {_or_none(row.local_p99_ms)} ({row.local_failed})",
            json.dumps(row.remote_answers),
            f"{row.remote_slowest_s:.2f}",
            _or_none(row.log_lines),
            _or_none(row.growth_mib),
        )
    Console(width=_WIDTH).print(table)


def _or_none(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
