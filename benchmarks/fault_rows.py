"""What rlm_faults has measured, as rows of a table."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

_WIDTH = 170
"""Characters: of a narrower table nobody can read the cells."""


@dataclass(frozen=True)
class Row:
    """What one fault did.

    Attributes:
        away_s: from the kill until all is started again.
        caught_up_s: from then until all that was rolled by then is in the tier.
        local_p99_before_ms, local_p99_ms: reads of what the broker has, of those that RLM answered.
        local_failed: reads of that which failed while the fault lasted.
        remote_answers: what reads of the tier were told meanwhile, and how often.
        remote_slowest_s: how long the longest of these took.
        log_lines, growth_mib: of RLM while the fault lasted; None: it was what was killed.
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
