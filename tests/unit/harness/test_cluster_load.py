"""Run the load of the tests in a cluster with settings that fail: it must end, and say why."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = Path(__file__).parents[2] / "cluster" / "load.py"
AWAY = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("settings", "failure"),
    [
        ({}, "client ended: KeyError('SEDIMENT_RSM')"),
        ({"SEDIMENT_RSM": AWAY, "SEDIMENT_RLMM": AWAY}, "client ended: InvalidRequestError("),
    ],
)
def test_a_client_that_ends_is_a_failure_and_holds_up_nothing(
    settings: dict[str, str], failure: str
) -> None:
    environment = {**os.environ, "SEDIMENT_TLS_CA_FILE": "/nowhere/ca.crt", **settings}
    done = subprocess.run(
        [sys.executable, LOAD],
        input="",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    begun, printed = done.stdout.splitlines()
    result = json.loads(printed)
    assert (begun, result["calls"]) == ("begun", 0)
    assert len(result["failures"]) == 4
    assert all(each.startswith(failure) for each in result["failures"]), result
