"""Alerts and dashboard: what promtool says of them, and what the chart makes of them."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.harness.published import broker_alerts, ensure_promtool
from tests.helm.chart import BASES, render
from tools.alerts import ALERTS, rule_tests, rules
from tools.dashboard import expressions

pytestmark = pytest.mark.helm


@pytest.fixture(scope="module")
def promtool() -> Path:
    return ensure_promtool()


def run(promtool: Path, *arguments: str | Path) -> None:
    done = subprocess.run(
        [promtool, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_quiet_until_its_time_and_then_fires(promtool: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(rule_tests("rules.yaml")))
    run(promtool, "check", "rules", tmp_path / "rules.yaml")
    run(promtool, "test", "rules", tmp_path / "tests.yaml")


def test_alerts_of_brokers_are_quiet_until_their_time_and_then_fire(
    promtool: Path, tmp_path: Path
) -> None:
    """Those that docs/use/kafka-plugin.md gives for a broker with the plugin."""
    alerts = broker_alerts()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(alerts))
    requests = 'kafka_topic_remotefetchrequests_total{topic="orders"}'
    errors = 'kafka_topic_remotefetcherrors_total{topic="orders"}'
    examples = {
        "SedimentPluginCopyLagGrows": (
            {'kafka_topic_remotecopylagbytes{topic="orders"}': "100+10x120"},
            {'kafka_topic_remotecopylagbytes{topic="orders"}': "100+10x60 0+10x60"},
            60,
        ),
        "SedimentPluginReadErrors": (
            {requests: "0+100x60", errors: "0+2x60"},
            {requests: "0+300x60", errors: "0+2x60"},
            5,
        ),
    }
    (group,) = alerts["groups"]
    assert [rule["alert"] for rule in group["rules"]] == list(examples)
    tests = []
    for rule in group["rules"]:
        bad, good, after_min = examples[rule["alert"]]
        waits_min = int(rule["for"].removesuffix("m"))
        summary = rule["annotations"]["summary"].replace("{{ $labels.topic }}", "orders")
        fired = {
            "exp_labels": {"topic": "orders", **rule["labels"]},
            "exp_annotations": {"summary": summary},
        }
        for series, minute, expected in (
            (bad, waits_min - 1, []),
            (bad, after_min + waits_min + 2, [fired]),
            (good, after_min + waits_min + 2, []),
        ):
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": name, "values": values} for name, values in series.items()
                    ],
                    "alert_rule_test": [
                        {
                            "alertname": rule["alert"],
                            "eval_time": f"{minute}m",
                            "exp_alerts": expected,
                        }
                    ],
                }
            )
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    run(promtool, "check", "rules", tmp_path / "rules.yaml")
    run(promtool, "test", "rules", tmp_path / "tests.yaml")


def test_what_waits_within_a_short_local_retention_is_no_alert(
    promtool: Path, tmp_path: Path
) -> None:
    """An hour of local retention, and a copy lag of ten minutes."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    series = {
        "sediment_rlm_seconds_until_local_deletion": "3000x60",
        "sediment_rlm_remote_copy_lag_seconds": "600x60",
    }
    quiet = {
        "interval": "1m",
        "input_series": [
            {"series": f'{name}{{topic="orders"}}', "values": values}
            for name, values in series.items()
        ],
        "alert_rule_test": [
            {"eval_time": "30m", "alertname": "SedimentLocalDeletionNear", "exp_alerts": []}
        ],
    }
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [quiet]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    run(promtool, "test", "rules", tmp_path / "tests.yaml")


def test_prometheus_reads_every_expression_of_the_dashboard(promtool: Path, tmp_path: Path) -> None:
    records = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions())
    ]
    assert len(records) > 20
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    run(promtool, "check", "rules", file)


def test_the_chart_renders_rules_and_dashboard() -> None:
    found = render(BASES["monitored"])
    assert found.one("PrometheusRule", "sediment")["spec"] == rules()
    shown = found.one("ConfigMap", "sediment-dashboard")["data"]
    assert json.loads(shown["sediment.json"])["uid"] == "sediment"


def test_no_two_alerts_have_one_name() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
