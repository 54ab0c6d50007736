"""Test that long work says every few seconds that it still runs."""

import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from spark_jobs.sweeps.progress import still_said

PATIENT = Path(__file__).parents[3] / "supply_chain" / "patient.py"


def test_work_is_named_at_once_and_again_while_it_lasts() -> None:
    said: list[str] = []
    again = Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            again.set()

    with still_said(say, "starting Spark", silent_s=0.01):
        assert said[0] == "starting Spark"
        assert again.wait(60)
    count = len(said)
    assert said[1] == "starting Spark: 0 s so far"
    assert not Event().wait(0.05)
    assert len(said) == count


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_command_of_the_makefile_is_named_and_ends_as_it_does(exit_code: int) -> None:
    command = [sys.executable, "-c", f"print('installed'); raise SystemExit({exit_code})"]
    done = subprocess.run(
        [sys.executable, str(PATIENT), "installing packages", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (exit_code, "installed\n")
    assert done.stderr.splitlines()[0] == "installing packages ..."
