"""Declare the panels of the dashboard, and write it as Grafana imports it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_COLUMNS = 3
_WIDTH, _HEIGHT = 24 // _COLUMNS, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """A diagram: its title, the unit as Grafana names it, and expressions by legend."""

    title: str
    unit: str
    expressions: dict[str, str]


def _rate(metric: str, by: str = "topic") -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def _of_topics(title: str, unit: str, expression: str) -> Panel:
    return Panel(title, unit, {"{{topic}}": expression})


def _p99(buckets: str, by: str) -> str:
    return f"histogram_quantile(0.99, sum by (le, {by}) (rate({buckets}[$__rate_interval])))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        Panel("Services up", "none", {"{{job}}": 'sum by (job) (up{job=~"sediment-.*"})'}),
        Panel(
            "Alerts that fire",
            "none",
            {
                "{{alertname}}": "sum by (alertname) "
                '(ALERTS{alertname=~"Sediment.*",alertstate="firing"}) or vector(0)'
            },
        ),
        _of_topics(
            "Time until the broker deletes part of the lag",
            "s",
            "min by (topic) (sediment_rlm_seconds_until_local_deletion)",
        ),
    ),
    "Copying": (
        _of_topics("Copied", "Bps", _rate("sediment_rlm_remote_copy_bytes_total")),
        _of_topics("Lag", "bytes", "sum by (topic) (sediment_rlm_remote_copy_lag_bytes)"),
        _of_topics("Age of the lag", "s", "max by (topic) (sediment_rlm_remote_copy_lag_seconds)"),
        _of_topics(
            "Partitions blocked", "none", "sum by (topic) (sediment_rlm_partitions_blocked)"
        ),
        Panel(
            "Failed copies",
            "cps",
            {
                "{{topic}}": _rate("sediment_rlm_remote_copy_errors_total"),
                "{{topic}}, retried": _rate("sediment_rlm_remote_copy_retriable_errors_total"),
            },
        ),
        Panel(
            "Idle threads",
            "percentunit",
            {"{{pool}}": "min by (pool) (sediment_rlm_tasks_idle_ratio)"},
        ),
    ),
    "Reading": (
        _of_topics("Read from the tier", "Bps", _rate("sediment_rlm_remote_fetch_bytes_total")),
        _of_topics("Failed reads", "cps", _rate("sediment_rlm_remote_fetch_errors_total")),
        Panel(
            "Reads that wait for a thread",
            "none",
            {"{{instance}}": "sediment_rlm_remote_log_reader_task_queue_size"},
        ),
        Panel(
            "Index cache",
            "cps",
            {
                "hits, {{layer}}": _rate("sediment_rlm_index_cache_hits_total", "layer"),
                "misses": "sum(rate(sediment_rlm_index_cache_misses_total[$__rate_interval]))",
            },
        ),
    ),
    "Tier": (
        _of_topics("Size", "bytes", "sum by (topic) (sediment_rlm_remote_log_size_bytes)"),
        Panel(
            "Deleted by retention",
            "Bps",
            {"deleted": "sum(rate(sediment_rlm_deleted_bytes_total[$__rate_interval]))"},
        ),
        _of_topics(
            "Waits to be deleted", "bytes", "sum by (topic) (sediment_rlm_remote_delete_lag_bytes)"
        ),
        Panel(
            "Since the oldest verification",
            "s",
            {
                "{{kind}}": "time() - "
                "max by (kind) (sediment_rlmm_oldest_verification_timestamp_seconds)"
            },
        ),
    ),
    "Store and database": (
        Panel(
            "Work in the store",
            "ops",
            {
                "{{operation}} {{result}}": _rate(
                    "sediment_rsm_store_seconds_count", "operation, result"
                )
            },
        ),
        Panel(
            "99% of the work in the store ends within",
            "s",
            {"{{operation}}": _p99("sediment_rsm_store_seconds_bucket", "operation")},
        ),
        Panel(
            "Part buffers of copies",
            "none",
            {
                "{{instance}} in use": "sediment_rsm_part_buffers_in_use",
                "{{instance}} limit": "sediment_rsm_part_buffers_limit",
                "{{instance}} waiting": "sediment_rsm_part_buffers_waiting",
            },
        ),
        Panel(
            "Work in the database",
            "ops",
            {
                "{{operation}} {{result}}": _rate(
                    "sediment_rlmm_database_seconds_count", "operation, result"
                )
            },
        ),
        Panel(
            "99% of the work in the database ends within",
            "s",
            {"{{operation}}": _p99("sediment_rlmm_database_seconds_bucket", "operation")},
        ),
        Panel(
            "Database connections",
            "none",
            {
                "{{instance}} in use": "sediment_rlmm_database_connections_in_use",
                "{{instance}} limit": "sediment_rlmm_database_connections_limit",
            },
        ),
        Panel(
            "Since the last success",
            "s",
            {
                "store, {{instance}}": "time() - sediment_rsm_store_last_success_timestamp_seconds",
                "database, {{instance}}": "time() - "
                "sediment_rlmm_database_last_success_timestamp_seconds",
            },
        ),
        Panel(
            "Verified while they were read",
            "ops",
            {"{{result}}": _rate("sediment_rsm_verified_parts_total", "result")},
        ),
        Panel(
            "Calls in progress",
            "none",
            {
                "{{job}} {{kind}}": "sum by (job, kind) (sediment_rpc_calls_in_progress)",
                "{{job}} {{kind}} waiting": "sum by (job, kind) (sediment_rpc_calls_waiting)",
                "{{job}} {{kind}} limit": "sum by (job, kind) (sediment_rpc_calls_limit)",
            },
        ),
    ),
    "Calls": (
        Panel("Calls", "cps", {"{{method}}": _rate("sediment_rpc_seconds_count", "method")}),
        Panel(
            "99% of calls end within",
            "s",
            {"{{method}}": _p99("sediment_rpc_seconds_bucket", "method")},
        ),
        Panel(
            "Failed calls",
            "cps",
            {
                "{{method}} {{code}}": "sum by (method, code) "
                '(rate(sediment_rpc_seconds_count{code!="OK"}[$__rate_interval]))'
            },
        ),
        Panel(
            "Denied calls",
            "cps",
            {"{{method}} {{reason}}": _rate("sediment_denied_calls_total", "method, reason")},
        ),
        Panel(
            "Certificates end in",
            "s",
            {
                "{{instance}}": "sediment_tls_certificate_expiry_timestamp_seconds - time() "
                "and sediment_tls_certificate_expiry_timestamp_seconds > 0"
            },
        ),
        Panel(
            "Memory",
            "bytes",
            {"{{job}} {{instance}}": 'process_resident_memory_bytes{job=~"sediment-.*"}'},
        ),
    ),
}


def expressions() -> Iterator[str]:
    """Yield the expressions of all panels, as Prometheus would get them."""
    for panels in ROWS.values():
        for panel in panels:
            for expression in panel.expressions.values():
                yield expression.replace("$__rate_interval", "5m")


def dashboard_json() -> str:
    """Return helm/files/dashboard.json as it should be."""
    dashboard = {
        "uid": "sediment",
        "title": "Sediment",
        "tags": ["sediment", "kafka"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data"}
            ]
        },
        "panels": list(_panels()),
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    number = y = 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        }
        y += 1
        for place, panel in enumerate(panels):
            number += 1
            x = place % _COLUMNS * _WIDTH
            yield _panel(number, panel, x, y + place // _COLUMNS * _HEIGHT)
        y += -(-len(panels) // _COLUMNS) * _HEIGHT


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
        for place, (legend, expression) in enumerate(panel.expressions.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [{**target, "datasource": _SOURCE} for target in targets],
    }
