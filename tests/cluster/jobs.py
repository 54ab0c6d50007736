"""Make jobs from the CronJobs of a release, as a person does, and read their reports."""

import json
from contextlib import suppress
from typing import Any

from tests.cluster.release import TIER, Release

_TIMEOUT = "--timeout=600s"


def create(release: Release, job: str, cron_job: str, namespace: str = TIER) -> None:
    """Create a job from a CronJob of the release."""
    command = ["create", "job", job, f"--from=cronjob/{cron_job}"]
    release.cluster.kubectl("--namespace", namespace, *command)


def report_of(release: Release, job: str, namespace: str = TIER) -> dict[str, Any]:
    """Wait until a job has ended, and return the report at the end of its log.

    Raises:
        AssertionError: the job failed.
    """
    cluster = release.cluster
    ended = ["wait", f"job/{job}", "--for=jsonpath={.status.conditions}", _TIMEOUT]
    cluster.kubectl("--namespace", namespace, *ended)
    log = cluster.kubectl("--namespace", namespace, "logs", f"job/{job}")
    conditions = cluster.get("--namespace", namespace, f"job/{job}")["status"]["conditions"]
    assert "Complete" in {one["type"] for one in conditions if one["status"] == "True"}, log
    return _at_the_end(log.splitlines())


def _at_the_end(lines: list[str]) -> dict[str, Any]:
    """Parse the report that the last lines are: one of a check, several of a sweep."""
    for first, line in enumerate(lines):
        if line.startswith("{"):
            with suppress(json.JSONDecodeError):
                report: dict[str, Any] = json.loads("\n".join(lines[first:]))
                return report
    raise AssertionError("the log ends with no report:\n" + "\n".join(lines))
