"""Run `sediment up --store` over the kind of store that TEST_STORE names, as a process."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.local.data_directory import StackEndpoints, Store, running_stack
from services.local.stack import own_environment
from tests.harness.eventually import eventually
from tests.harness.processes import runs
from tests.harness.recorders import trap
from tests.harness.running_up import running_up
from tests.harness.sediment_command import sediment, sediment_process
from tests.harness.world import linked_log
from tests.stores.conftest import KIND

pytestmark = pytest.mark.deep

PARTITION = "profiles-0"
SEGMENTS = 10


def test_up_over_this_store_keeps_what_was_shipped(server_directory: Path, tmp_path: Path) -> None:
    data_dir, log_dir = server_directory / "up", linked_log(tmp_path, ("profiles",))
    read = ("fetch", PARTITION, "--from", "beginning", "--to", "end")
    with running_up(data_dir, "--store", KIND) as first:
        at = first.endpoints
        assert (at.store, at.s3_region, set(at.pids) & {*Store}) == (KIND, "", {KIND})
        (shipped,) = first.lines("ship", log_dir)
        assert shipped["partitions"][0]["copied_segments"] == SEGMENTS
        [probed] = first.lines("store", "probe")
        assert probed["usable"]
        [checked] = first.lines("doctor")
        [bucket, *_] = [each for each in checked["findings"] if each["check"] == "bucket"]
        assert bucket["text"].endswith(f"bucket 'sediment' at {at.s3_endpoint}: RSM can use it")
        assert first.run("selftest").returncode == 0
        stored = first.lines(*read)
        assert {each["source"] for each in stored} == {"REMOTE"}
        first.process.send_signal(signal.SIGTERM)
        _, errors = first.process.communicate(timeout=120)
        assert first.process.returncode == 0, errors
        assert not [name for name, pid in at.pids.items() if runs(pid)]
    with (
        trap() as made,
        running_up(data_dir, "--store", KIND, environment=made.proxies()) as second,
    ):
        assert second.lines(*read) == stored
        assert made.reached == 0
        os.kill(second.process.pid, signal.SIGKILL)
    with running_up(data_dir, "--store", KIND) as third:
        assert third.lines(*read) == stored
        assert third.endpoints.deployment_id == at.deployment_id
        os.kill(third.endpoints.pids[KIND], signal.SIGKILL)
        assert eventually(lambda: started_again(data_dir, third.endpoints), deadline_ms=120_000)
        assert third.lines(*read) == stored
        assert third.run("selftest").returncode == 0


def started_again(data_dir: Path, before: StackEndpoints) -> bool:
    """Return whether another process is the store, at the same address."""
    now = running_stack(data_dir)
    assert now is not None
    assert now.s3_endpoint == before.s3_endpoint
    return now.pids[KIND] != before.pids[KIND]


@pytest.mark.parametrize("other", [each for each in Store if each != KIND])
def test_up_refuses_a_directory_of_another_store_before_it_starts_anything(
    tmp_path: Path, other: Store
) -> None:
    for folder, asked in ((KIND, other), (other, KIND)):
        data_dir = tmp_path / folder
        (data_dir / folder).mkdir(parents=True)
        (data_dir / "sediment-data").touch()
        done = sediment("up", "--data-dir", data_dir, "--store", asked)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == (
            f"sediment: {data_dir} was made with --store {folder}, and was to start with {asked}; "
            f"give --store {folder} or another --data-dir, or --fresh to delete what is stored"
        )
        assert {each.name for each in data_dir.iterdir()} == {folder, "sediment-data", "lock"}


def test_up_names_the_tool_that_is_missing_before_it_starts_anything(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    data_dir = tmp_path / "data"
    done = sediment_process("up", "--data-dir", data_dir, "--store", KIND, environment=nothing)
    assert done.returncode == 3
    tool, needs = {"gcs": ("go", "Go 1.26"), "azure": ("node", "Node.js 20")}[KIND]
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"sediment: `{tool}` is not on the PATH: the emulator of ")
    assert needs in line
    assert line.endswith("; install it and start again")
    assert {each.name for each in data_dir.iterdir()} == {"sediment-data", "lock"}


def test_up_says_that_it_goes_on_while_another_process_builds(tmp_path: Path) -> None:
    name = {"gcs": "fake-gcs", "azure": "azurite"}[KIND]
    cache = tmp_path / "cache" / "sediment"
    cache.mkdir(parents=True)
    command = [sys.executable, "-m", "services.cli", "up", "--store", KIND]
    environment = own_environment({"XDG_CACHE_HOME": str(cache.parent)})
    with (cache / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(
            [*command, "--data-dir", str(tmp_path / "data")],
            env=environment,
            text=True,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            said = [process.stderr.readline() for _ in range(3)]
            process.kill()
    assert re.fullmatch("still starting: [4-9] s so far\n", said[1])
    assert re.fullmatch(r"still starting: \d+ s so far\n", said[2])
