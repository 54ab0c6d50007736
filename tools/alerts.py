"""Declare the alerts, and write them as Prometheus rules and as the table of docs/run/alerts.md."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

import yaml

from hatch_build import ROOT

RUNBOOKS = "https://github.com/sediment/sediment/blob/main/docs/run/runbooks.md"
_INTERVAL_MIN = 1
_DURATION = re.compile(r"\b(\d+)([mh])\b")
_UNIT_MS = {"m": 60_000, "h": 3_600_000}


@dataclass(frozen=True)
class Example:
    """Series for `promtool test rules`, one value a minute, for which the alert fires.

    Attributes:
        series: by name and labels, in promtool's notation.
        labels: of the alert that fires, besides its name and severity.
        after_min: the minute from which the expression is true; it fires `for` later.
        value: as the summary has it.
    """

    series: dict[str, str]
    labels: dict[str, str]
    after_min: int = 0
    value: str = ""


@dataclass(frozen=True)
class Alert:
    """An alert. Its runbook is a section of docs/run/runbooks.md.

    Attributes:
        for_min: how long the expression must be true, minutes.
        expression: with limit_s, if there is one, as $limit_s.
        summary: of what is wrong; may name labels as {{ $labels.NAME }}.
    """

    name: str
    severity: str
    for_min: int
    expression: str
    summary: str
    example: Example
    limit_s: int = 0


_FAILURES = 'code=~"UNAVAILABLE|INTERNAL|UNKNOWN"'
_REFUSALS = 'code="RESOURCE_EXHAUSTED"'
_CALLS = "sediment_rpc_seconds_count"
_STORE = "sediment_rsm_store_seconds_count"
_STORE_ERRORS = 'result!~"ok|not_found"'
_DATABASE = "sediment_rlmm_database_seconds_count"
_DATABASE_ERRORS = 'result!~"ok|cancelled"'
_PART_OF = 'label_app_kubernetes_io_part_of="sediment"'
# kube-state-metrics publishes these labels if --metric-labels-allowlist names them. Without them,
# what belongs to the chart is known by its name, which has the release's or the chart's in front.
_OUR_JOBS = f'kube_job_labels{{{_PART_OF}}} or kube_job_failed{{job_name=~"(.+-)?sediment-.+"}}'
_OUR_CONSOLES = (
    f'kube_deployment_labels{{{_PART_OF},label_app_kubernetes_io_component="console"}} '
    'or kube_deployment_status_replicas_available{deployment=~"(.+-)?sediment-console"}'
)


def _share_of_calls(matcher: str) -> str:
    return (
        f"sum by (job, method) (rate({_CALLS}{{{matcher}}}[5m])) "
        f"/ sum by (job, method) (rate({_CALLS}[5m]))"
    )


def _happened(counter: str, by: str) -> str:
    """Return whether a counter grew within an hour, or began above 0, where increase() is 0."""
    return (
        f"sum by ({by}) (increase({counter}[1h])) > 0 "
        f"or sum by ({by}) ({counter} unless {counter} offset 1h) > 0"
    )


_REPORTED_S = "min by (broker_id) (sediment_rlmm_oldest_trim_report_timestamp_seconds)"
_VALUE = '{{ printf "%.1f" $value }}'
_FREE = "sediment_rlm_log_dirs_free_bytes"
# What was trimmed while RLM ran fills the disk without it.
_FILLS = (
    "rate(sediment_rlm_local_trimmed_bytes_total[24h]) "
    f"- on (job, instance) group_right deriv({_FREE}[24h])"
)
_DAYS = f"min by (broker_id) (last_over_time({_FREE}[24h]) / clamp_min({_FILLS}, 1)) / 86400"
_LEFT_S = "min by (topic) (sediment_rlm_seconds_until_local_deletion)"

ALERTS = (
    Alert(
        "SedimentDown",
        "critical",
        5,
        'up{job=~"sediment-(rsm|rlmm|rlm)"} == 0',
        "{{ $labels.job }} at {{ $labels.instance }} does not answer scrapes.",
        Example(
            {'up{job="sediment-rsm",instance="a"}': "0x30"},
            {"job": "sediment-rsm", "instance": "a"},
        ),
    ),
    Alert(
        "SedimentLocalDeletionNear",
        "critical",
        10,
        # And less is left than has passed: local retention may be an hour, or copies wait by a lag.
        f"{_LEFT_S} < $limit_s "
        f"and {_LEFT_S} < max by (topic) (sediment_rlm_remote_copy_lag_seconds)",
        "In less than an hour the broker deletes data of {{ $labels.topic }} that is not in the "
        "tier.",
        Example(
            {
                'sediment_rlm_seconds_until_local_deletion{topic="orders"}': "3500-60x30",
                'sediment_rlm_remote_copy_lag_seconds{topic="orders"}': "82900+60x30",
            },
            {"topic": "orders"},
        ),
        limit_s=3600,
    ),
    Alert(
        "SedimentLostBeforeCopy",
        "critical",
        0,
        _happened("sediment_rlm_lost_ranges_total", "job, instance"),
        "The broker of {{ $labels.instance }} deleted data before it was copied.",
        Example(
            {
                'sediment_rlm_lost_ranges_total{job="sediment-rlm",instance="a"}': (
                    "_ _ _ _ _ _ 1x30"
                )
            },
            {"job": "sediment-rlm", "instance": "a"},
            after_min=6,
        ),
    ),
    Alert(
        "SedimentDamagedData",
        "critical",
        0,
        _happened(f'{_CALLS}{{code="DATA_LOSS"}}', "job, method"),
        "{{ $labels.method }} of {{ $labels.job }} met data that is lost or damaged.",
        Example(
            {
                f'{_CALLS}{{job="sediment-rsm",method="FetchLogSegment",code="DATA_LOSS"}}': (
                    "_ _ _ _ _ _ 1x30"
                )
            },
            {"job": "sediment-rsm", "method": "FetchLogSegment"},
            after_min=6,
        ),
    ),
    Alert(
        "SedimentPartitionsBlocked",
        "warning",
        10,
        "sum by (topic) (sediment_rlm_partitions_blocked) > 0",
        "Partitions of {{ $labels.topic }} are not copied until something is repaired.",
        Example({'sediment_rlm_partitions_blocked{topic="orders"}': "1x30"}, {"topic": "orders"}),
    ),
    Alert(
        "SedimentBrokerRetentionSet",
        "critical",
        5,
        "sum by (topic) (sediment_rlm_broker_retention_set) > 0",
        "The brokers' own retention may delete data of {{ $labels.topic }} that is not in the "
        "tier.",
        Example({'sediment_rlm_broker_retention_set{topic="orders"}': "1x30"}, {"topic": "orders"}),
    ),
    Alert(
        "SedimentTrimmingStalled",
        "warning",
        5,
        f"({_DAYS} or {_REPORTED_S} * 0 / 0) and (time() - {_REPORTED_S} > $limit_s)",
        "The RLM of broker {{ $labels.broker_id }} has not reported for 15 minutes: nothing is "
        f"deleted there. By its last figures the disk lasts {_VALUE} days.",
        Example(
            {
                'sediment_rlmm_oldest_trim_report_timestamp_seconds{broker_id="1"}': "0x60",
                f'{_FREE}{{job="sediment-rlm",instance="a",broker_id="1"}}': (
                    "173400000000-60000000x10"
                ),
                'sediment_rlm_local_trimmed_bytes_total{job="sediment-rlm",instance="a"}': "0x10",
            },
            {"broker_id": "1"},
            after_min=16,
            value="2.0",
        ),
        limit_s=900,
    ),
    Alert(
        "SedimentCopyingStalled",
        "warning",
        10,
        "count by (job, instance) "
        '(sediment_rlm_seconds_since_last_success{pool="copier"} > $limit_s) > 0',
        "Partitions of {{ $labels.instance }} had no good copy pass for 15 minutes.",
        Example(
            {
                "sediment_rlm_seconds_since_last_success"
                '{job="sediment-rlm",instance="a",pool="copier",topic="orders"}': "960+60x30"
            },
            {"job": "sediment-rlm", "instance": "a"},
        ),
        limit_s=900,
    ),
    Alert(
        "SedimentCopyLagGrows",
        "warning",
        60,
        "sum by (job, instance) (sediment_rlm_remote_copy_lag_bytes) > 1.2 * "
        "sum by (job, instance) (sediment_rlm_remote_copy_lag_bytes offset 1h) + 1e9",
        "The lag of {{ $labels.instance }} grows: it is larger than an hour ago.",
        Example(
            {
                "sediment_rlm_remote_copy_lag_bytes"
                '{job="sediment-rlm",instance="a",topic="orders"}': "0+100000000x180"
            },
            {"job": "sediment-rlm", "instance": "a"},
            after_min=60,
        ),
    ),
    Alert(
        "SedimentCopyErrors",
        "warning",
        5,
        "sum by (topic) (increase(sediment_rlm_remote_copy_errors_total[15m])) > 0",
        "Copies of {{ $labels.topic }} fail with an error that a retry does not solve.",
        Example(
            {'sediment_rlm_remote_copy_errors_total{topic="orders"}': "0+1x30"},
            {"topic": "orders"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentDeletionStalled",
        "warning",
        30,
        "count by (job, instance) "
        '(sediment_rlm_seconds_since_last_success{pool="expiration",topic!=""} > $limit_s) > 0',
        "Partitions of {{ $labels.instance }} had no good retention pass for an hour.",
        Example(
            {
                "sediment_rlm_seconds_since_last_success"
                '{job="sediment-rlm",instance="a",pool="expiration",topic="orders"}': "3660+60x60"
            },
            {"job": "sediment-rlm", "instance": "a"},
        ),
        limit_s=3600,
    ),
    Alert(
        "SedimentDeleteErrors",
        "warning",
        5,
        "sum by (topic) (increase(sediment_rlm_remote_delete_errors_total[15m])) > 0",
        "Deletions of {{ $labels.topic }} fail with an error that a retry does not solve.",
        Example(
            {'sediment_rlm_remote_delete_errors_total{topic="orders"}': "0+1x30"},
            {"topic": "orders"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentReadErrors",
        "warning",
        10,
        "sum by (topic) (rate(sediment_rlm_remote_fetch_errors_total[5m])) "
        "/ sum by (topic) (rate(sediment_rlm_remote_fetch_requests_total[5m])) > 0.01",
        "More than 1% of the reads of {{ $labels.topic }} from the tier fail.",
        Example(
            {
                'sediment_rlm_remote_fetch_errors_total{topic="orders"}': "0+5x30",
                'sediment_rlm_remote_fetch_requests_total{topic="orders"}': "0+100x30",
            },
            {"topic": "orders"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentReadersBusy",
        "warning",
        15,
        "min_over_time(sediment_rlm_remote_log_reader_task_queue_size[5m]) > 0",
        "Reads of the tier wait for reader threads of {{ $labels.instance }}.",
        Example(
            {
                "sediment_rlm_remote_log_reader_task_queue_size"
                '{job="sediment-rlm",instance="a"}': "3x60"
            },
            {"job": "sediment-rlm", "instance": "a"},
        ),
    ),
    Alert(
        "SedimentPollingStalled",
        "warning",
        5,
        "max by (job, instance) "
        '(sediment_rlm_seconds_since_last_success{pool="poller"}) > $limit_s',
        "{{ $labels.instance }} could not poll the brokers for 10 minutes.",
        Example(
            {
                "sediment_rlm_seconds_since_last_success"
                '{job="sediment-rlm",instance="a",pool="poller"}': "660+60x30"
            },
            {"job": "sediment-rlm", "instance": "a"},
        ),
        limit_s=600,
    ),
    Alert(
        "SedimentCallsFail",
        "warning",
        10,
        f"{_share_of_calls(_FAILURES)} > 0.05",
        "More than 5% of the calls of {{ $labels.method }} fail at {{ $labels.job }}.",
        Example(
            {
                f'{_CALLS}{{job="sediment-rlmm",method="Add",code="OK"}}': "0+90x30",
                f'{_CALLS}{{job="sediment-rlmm",method="Add",code="UNAVAILABLE"}}': "0+10x30",
            },
            {"job": "sediment-rlmm", "method": "Add"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentOverloaded",
        "warning",
        15,
        f"{_share_of_calls(_REFUSALS)} > 0.05",
        "{{ $labels.job }} refuses more than 5% of the calls of {{ $labels.method }} as too many.",
        Example(
            {
                f'{_CALLS}{{job="sediment-rsm",method="Copy",code="OK"}}': "0+90x30",
                f'{_CALLS}{{job="sediment-rsm",method="Copy",code="RESOURCE_EXHAUSTED"}}': (
                    "0+10x30"
                ),
            },
            {"job": "sediment-rsm", "method": "Copy"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentStoreErrors",
        "warning",
        10,
        f"sum by (job, operation, result) (rate({_STORE}{{{_STORE_ERRORS}}}[5m])) > 0",
        "Requests of {{ $labels.job }} to its store fail: {{ $labels.operation }}, "
        "{{ $labels.result }}.",
        Example(
            {f'{_STORE}{{job="sediment-rsm",operation="put",result="full"}}': "0+1x30"},
            {"job": "sediment-rsm", "operation": "put", "result": "full"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentStoreSilent",
        "critical",
        5,
        "time() - sediment_rsm_store_last_success_timestamp_seconds > $limit_s",
        "The store did nothing that {{ $labels.instance }} asked for two minutes.",
        Example(
            {
                "sediment_rsm_store_last_success_timestamp_seconds"
                '{job="sediment-rsm",instance="a"}': "-180x30"
            },
            {"job": "sediment-rsm", "instance": "a"},
        ),
        limit_s=120,
    ),
    Alert(
        "SedimentMirrorRead",
        "critical",
        5,
        "sum by (job, instance) (increase(sediment_rsm_mirror_reads_total[5m])) > 0",
        "{{ $labels.instance }} reads a mirror: the location's own store does not answer, and "
        "copies and deletions wait.",
        Example(
            {'sediment_rsm_mirror_reads_total{job="sediment-rsm",instance="a"}': "0+60x30"},
            {"job": "sediment-rsm", "instance": "a"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentDatabaseErrors",
        "warning",
        10,
        f"sum by (job, operation, result) (rate({_DATABASE}{{{_DATABASE_ERRORS}}}[5m])) > 0",
        "Work of {{ $labels.job }} in its database fails: {{ $labels.operation }}, "
        "{{ $labels.result }}.",
        Example(
            {
                f'{_DATABASE}{{job="sediment-rlmm",operation="change",result="disk_full"}}': (
                    "0+1x30"
                )
            },
            {"job": "sediment-rlmm", "operation": "change", "result": "disk_full"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentDatabaseSilent",
        "critical",
        5,
        "time() - sediment_rlmm_database_last_success_timestamp_seconds > $limit_s",
        "The database did nothing that {{ $labels.instance }} asked for two minutes.",
        Example(
            {
                "sediment_rlmm_database_last_success_timestamp_seconds"
                '{job="sediment-rlmm",instance="a"}': "-180x30"
            },
            {"job": "sediment-rlmm", "instance": "a"},
        ),
        limit_s=120,
    ),
    Alert(
        "SedimentConnectionsUsedUp",
        "warning",
        15,
        "min_over_time(sediment_rlmm_database_connections_in_use[5m]) "
        ">= sediment_rlmm_database_connections_limit",
        "All database connections of {{ $labels.instance }} are in use.",
        Example(
            {
                "sediment_rlmm_database_connections_in_use"
                '{job="sediment-rlmm",instance="a"}': "16x60",
                "sediment_rlmm_database_connections_limit"
                '{job="sediment-rlmm",instance="a"}': "16x60",
            },
            {"job": "sediment-rlmm", "instance": "a"},
        ),
    ),
    Alert(
        "SedimentCallsQueue",
        "warning",
        15,
        "min_over_time(sediment_rpc_calls_waiting[5m]) > 0",
        "Calls of kind {{ $labels.kind }} wait for threads of {{ $labels.instance }}.",
        Example(
            {
                'sediment_rpc_calls_waiting{job="sediment-rsm",instance="a",kind="stream-in"}': (
                    "2x60"
                )
            },
            {"job": "sediment-rsm", "instance": "a", "kind": "stream-in"},
        ),
    ),
    Alert(
        "SedimentJobFailed",
        "warning",
        5,
        # kube-state-metrics has its own names; a job that was deleted or replaced is gone from it.
        'max by (namespace, job_name) (kube_job_failed{condition="true"}) > 0 '
        f"and on (namespace, job_name) ({_OUR_JOBS})",
        "The job {{ $labels.job_name }} in {{ $labels.namespace }} has failed.",
        Example(
            {
                'kube_job_failed{job="kube-state-metrics",namespace="tier",'
                'job_name="tier-maintenance-29400007",condition="true"}': "0x5 1x30",
                'kube_job_labels{job="kube-state-metrics",namespace="tier",'
                f'job_name="tier-maintenance-29400007",{_PART_OF}}}': "1x40",
            },
            {"namespace": "tier", "job_name": "tier-maintenance-29400007"},
            after_min=6,
        ),
    ),
    Alert(
        "SedimentConsoleDown",
        "warning",
        5,
        "max by (namespace, deployment) (kube_deployment_status_replicas_available) == 0 "
        f"and on (namespace, deployment) ({_OUR_CONSOLES})",
        "No console of {{ $labels.deployment }} in {{ $labels.namespace }} is ready.",
        Example(
            {
                'kube_deployment_status_replicas_available{job="kube-state-metrics",'
                'namespace="tier",deployment="my-sediment-console"}': "0x30"
            },
            {"namespace": "tier", "deployment": "my-sediment-console"},
        ),
    ),
    Alert(
        "SedimentCallsDenied",
        "warning",
        10,
        "sum by (job, method, reason) (rate(sediment_denied_calls_total[5m])) > 0",
        "{{ $labels.job }} denies calls of {{ $labels.method }}: {{ $labels.reason }}.",
        Example(
            {
                'sediment_denied_calls_total{job="sediment-rsm",method="Copy",reason="role"}': (
                    "0+1x30"
                )
            },
            {"job": "sediment-rsm", "method": "Copy", "reason": "role"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentCertificateEnds",
        "warning",
        15,
        "sediment_tls_certificate_expiry_timestamp_seconds > 0 and "
        "sediment_tls_certificate_expiry_timestamp_seconds - time() < 7 * 86400",
        "The certificate of {{ $labels.instance }} ends within a week.",
        Example(
            {
                "sediment_tls_certificate_expiry_timestamp_seconds"
                '{job="sediment-rsm",instance="a"}': "86400x30"
            },
            {"job": "sediment-rsm", "instance": "a"},
        ),
    ),
    Alert(
        "SedimentFileRejected",
        "warning",
        0,
        "sum by (job, instance, file) (increase(sediment_reloaded_file_errors_total[1h])) > 0",
        "{{ $labels.instance }} cannot use the new content of {{ $labels.file }}.",
        Example(
            {
                "sediment_reloaded_file_errors_total"
                '{job="sediment-rsm",instance="a",file="policy"}': "0x5 1x30"
            },
            {"job": "sediment-rsm", "instance": "a", "file": "policy"},
            after_min=6,
        ),
    ),
    Alert(
        "SedimentIndexCacheFails",
        "warning",
        15,
        "sum by (job, instance, operation) "
        "(increase(sediment_rlm_index_cache_failures_total[15m])) > 0",
        "The index cache of {{ $labels.instance }} cannot {{ $labels.operation }} files.",
        Example(
            {
                "sediment_rlm_index_cache_failures_total"
                '{job="sediment-rlm",instance="a",operation="write"}': "0+1x60"
            },
            {"job": "sediment-rlm", "instance": "a", "operation": "write"},
            after_min=1,
        ),
    ),
    Alert(
        "SedimentNotMaintained",
        "warning",
        60,
        "time() - max(sediment_rlmm_last_maintenance_timestamp_seconds) > 2 * 86400",
        "The metadata database was not maintained for two days.",
        Example({"sediment_rlmm_last_maintenance_timestamp_seconds": "-180000x90"}, {}),
    ),
    Alert(
        "SedimentNotVerified",
        "warning",
        60,
        "time() - max by (kind) (sediment_rlmm_oldest_verification_timestamp_seconds) > 45 * 86400",
        "A topic had no whole {{ $labels.kind }} for 45 days.",
        Example(
            {'sediment_rlmm_oldest_verification_timestamp_seconds{kind="SCRUB"}': "-4000000x90"},
            {"kind": "SCRUB"},
        ),
    ),
)


def rules(factor: int = 1) -> dict[str, Any]:
    """Return the rules as Prometheus reads them.

    Args:
        factor: by which all times are shorter than in production: at 60 a minute is a second.
    """
    return {"groups": [{"name": "sediment", "rules": [_rule(alert, factor) for alert in ALERTS]}]}


def _rule(alert: Alert, factor: int) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": _expression(alert, factor),
        "for": f"{alert.for_min}m" if factor == 1 else f"{alert.for_min * 60_000 // factor}ms",
        "labels": {"severity": alert.severity},
        "annotations": _annotations(alert),
    }


def _expression(alert: Alert, factor: int) -> str:
    expression = Template(alert.expression).substitute(limit_s=alert.limit_s // factor)
    if factor == 1:
        return expression
    return _DURATION.sub(
        lambda found: f"{int(found[1]) * _UNIT_MS[found[2]] // factor}ms", expression
    )


def _annotations(alert: Alert) -> dict[str, str]:
    return {"summary": alert.summary, "runbook_url": f"{RUNBOOKS}#{alert.name.lower()}"}


def rules_yaml() -> str:
    """Return helm/files/alerts.yaml as it should be."""
    written: str = yaml.safe_dump(rules(), sort_keys=False, width=100)
    return f"# Written by `make docs` from tools/alerts.py.\n{written}"


def rule_tests(rules_file: str) -> dict[str, Any]:
    """Return a file for `promtool test rules`: each alert is quiet until its time, then fires."""
    return {
        "rule_files": [rules_file],
        "evaluation_interval": f"{_INTERVAL_MIN}m",
        "tests": [_rule_test(alert) for alert in ALERTS],
    }


def _rule_test(alert: Alert) -> dict[str, Any]:
    fires_min = alert.example.after_min + alert.for_min
    before = [] if fires_min == 0 else [_expected(alert, fires_min - 1, fires=False)]
    return {
        "interval": f"{_INTERVAL_MIN}m",
        "input_series": [
            {"series": name, "values": values} for name, values in alert.example.series.items()
        ],
        "alert_rule_test": [*before, _expected(alert, fires_min, fires=True)],
    }


def _expected(alert: Alert, at_min: int, *, fires: bool) -> dict[str, Any]:
    summary = alert.summary
    for name, value in alert.example.labels.items():
        summary = summary.replace(f"{{{{ $labels.{name} }}}}", value)
    summary = summary.replace(_VALUE, alert.example.value)
    labels = {**alert.example.labels, "severity": alert.severity}
    firing = {"exp_labels": labels, "exp_annotations": {**_annotations(alert), "summary": summary}}
    return {
        "eval_time": f"{at_min}m",
        "alertname": alert.name,
        "exp_alerts": [firing] if fires else [],
    }


_PAGE = """# Alerts

The chart installs these rules with `monitoring.prometheusRule.enabled`
([kubernetes.md](kubernetes.md#metrics-and-alerts)). For another Prometheus take
`helm/files/alerts.yaml`, and name the scrape jobs `sediment-rsm`, `sediment-rlmm` and
`sediment-rlm`. `helm/files/dashboard.json` is the dashboard for Grafana. Written by `make docs`
from `tools/alerts.py`.

| alert | severity | for | means |
|---|---|---|---|"""


_FAULTS = """
## Each alert, fired by a fault

`make test-alerts` injects a fault for each alert of this table into real processes of RSM, RLMM
and RLM, scraped by Debian's Prometheus once a second, waits until the alert fires, ends the
fault and waits until no alert fires. The times of the rules are 60 times shorter there: "for 5
min" is 5 s, and a window of an hour is a minute. The seconds are those of runs on a busy
machine; production adds the scrape interval to 60 times what the rule itself takes. The age of
a verification and of a maintenance is changed in the database, because a test cannot wait for
45 days.
A cluster's job and console are those of a page of metrics like kube-state-metrics'.

| alert | fault | fires after, s | clears after, s |
|---|---|---|---|"""
_TIMES = ROOT / "tests" / "alerts" / "times.json"


def page() -> str:
    """Return docs/run/alerts.md as it should be."""
    measured = json.loads(_TIMES.read_text())
    faults = (
        f"| {each['alert']} | {each['fault']} | {each['fires_s']:.0f} | {each['clears_s']:.0f} |"
        for each in measured
    )
    return "\n".join([_PAGE, *_table(ALERTS), _FAULTS, *faults]) + "\n"


def _table(alerts: Sequence[Alert]) -> Iterator[str]:
    for alert in alerts:
        duration = f"{alert.for_min} min" if alert.for_min else "at once"
        summary = alert.summary.replace(_VALUE, "*N*")
        summary = summary.replace("{{ $labels.", "*").replace(" }}", "*")
        link = f"[{alert.name}](runbooks.md#{alert.name.lower()})"
        yield f"| {link} | {alert.severity} | {duration} | {summary} |"
