"""Check that alerts and dashboard name metrics that exist, and that each alert has a runbook."""

import re

import pytest

from hatch_build import ROOT
from services.cli.main import COMMANDS
from tools.alerts import ALERTS, Alert
from tools.chart_reference import files
from tools.dashboard import expressions
from tools.reference import metrics_markdown

RUNBOOKS = (ROOT / "docs" / "run" / "runbooks.md").read_text()
METRIC = re.compile(r"\bsediment_[a-z_]+[a-z]\b")
SUFFIX = re.compile(r"_(bucket|sum|count)$")
COMMAND = re.compile(r"`sediment ([a-z]+)")
RUNBOOK = re.compile(r"^## (Sediment\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PARTS = ["**Why.**", "**What to do.**"]


def unknown_metrics(expression: str) -> set[str]:
    page = metrics_markdown()
    return {
        name
        for name in METRIC.findall(expression)
        if f"| `{name}` " not in page and f"| `{SUFFIX.sub('', name)}` | histogram" not in page
    }


def test_an_unknown_metric_is_found() -> None:
    assert unknown_metrics("rate(sediment_rlm_no_such_total[5m])") == {"sediment_rlm_no_such_total"}


def test_alerts_and_dashboard_name_metrics_that_exist() -> None:
    used = [alert.expression for alert in ALERTS] + list(expressions())
    series = [name for alert in ALERTS for name in alert.example.series]
    assert unknown_metrics("\n".join([*used, *series])) == set()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_has_a_runbook_whose_commands_exist(alert: Alert) -> None:
    text = dict(RUNBOOK.findall(RUNBOOKS))[alert.name]
    assert re.findall(r"^\*\*\w[\w ]+\.\*\*", text, re.MULTILINE) == PARTS
    assert set(COMMAND.findall(text)) <= COMMANDS.keys()


def test_each_runbook_is_of_an_alert() -> None:
    assert sorted(name for name, _ in RUNBOOK.findall(RUNBOOKS)) == sorted(a.name for a in ALERTS)


def test_the_written_files_are_up_to_date() -> None:
    stale = [path.name for path, text in files().items() if path.read_text() != text]
    assert stale == [], "run `make docs`"
