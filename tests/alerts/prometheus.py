"""Run Debian's Prometheus with the generated rules, their times divided by a factor."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from services.local.process import LOOPBACK, ChildProcess, ServerProcess
from services.local.stack import own_environment
from tests.harness.published import ensure_prometheus
from tools.alerts import rules

_SCRAPE_MS = 1000
_TIMEOUT_S = 10


class Prometheus(ServerProcess):
    """Scrapes once a second while it is entered.

    Args:
        targets: the metrics addresses of each job, HOST:PORT.
        factor: by which the times of the rules are shorter than in production.
    """

    def __init__(self, directory: Path, targets: Mapping[str, Sequence[str]], factor: int) -> None:
        self._directory = directory
        self._targets = targets
        self._factor = factor
        super().__init__()

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of all firing alerts by the alert's name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self._get("/api/v1/alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def problems(self) -> list[str]:
        """Return the errors of rules that Prometheus could not evaluate."""
        groups = self._get("/api/v1/rules")["groups"]
        return [r["lastError"] for group in groups for r in group["rules"] if r.get("lastError")]

    def is_scraping(self) -> bool:
        """Return whether the latest scrape of every target succeeded."""
        targets = self._get("/api/v1/targets")["activeTargets"]
        return bool(targets) and all(target["health"] == "up" for target in targets)

    def start(self) -> None:
        self._directory.mkdir()
        (self._directory / "rules.yaml").write_text(yaml.safe_dump(rules(self._factor)))
        (self._directory / "prometheus.yaml").write_text(yaml.safe_dump(self._configuration()))
        super().start()

    @property
    def _address(self) -> str:
        return f"{LOOPBACK}:{self._ports[0]}"

    def _configuration(self) -> dict[str, Any]:
        interval = f"{_SCRAPE_MS}ms"
        jobs = [
            {"job_name": name, "static_configs": [{"targets": list(addresses)}]}
            for name, addresses in self._targets.items()
        ]
        return {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": ["rules.yaml"],
            "scrape_configs": jobs,
        }

    def _program(self) -> ChildProcess:
        command: list[str | Path] = [
            str(ensure_prometheus()),
            f"--config.file={self._directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address={self._address}",
        ]
        return ChildProcess("prometheus", command, self._directory, own_environment({}))

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"http://{self._address}/-/ready", timeout=_TIMEOUT_S):
                return True
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        with urlopen(f"http://{self._address}{path}", timeout=_TIMEOUT_S) as answer:
            return json.load(answer)["data"]
