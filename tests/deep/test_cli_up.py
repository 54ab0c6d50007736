"""`sediment up`, and the commands that find it: real processes, as an operator runs them."""

import base64
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from demos.stage import link_log_dir, unlink_segments
from services.cli.fetch import PrintedRecord, records
from services.local.data_directory import (
    StackEndpoints,
    running_stack,
)
from services.local.stack import own_environment
from tests.harness.eventually import eventually
from tests.harness.processes import runs
from tests.harness.recorders import trap
from tests.harness.running_up import SEGMENTS, Up, running_up
from tests.harness.sediment_command import sediment
from tests.harness.small_limits import small_disk
from tests.harness.world import BUNDLED_LOG, linked_log, name_topics_anew

RECORDS = BUNDLED_LOG.with_name("kafka-log.records.jsonl.gz")
CONSUMERS_PAGE = Path(__file__).parents[2] / "docs" / "use" / "clients.md"
PARTITIONS = 11
MIB = 1024 * 1024
Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole bundled log, as links."""
    path = tmp_path_factory.mktemp("up") / "log"
    link_log_dir(BUNDLED_LOG, path)
    return path


@pytest.fixture(scope="module")
def up(server_directory: Path, log_dir: Path) -> Iterator[Up]:
    with running_up(server_directory / "up", "--log-dir", log_dir, "--listener") as made:
        made.wait_until_shipped()
        yield made


# The endpoints


EMPTY = ("s3_prefix", "locations_file", "tls_ca", "tls_certificate", "tls_key")


def test_up_prints_all_addresses_and_pids(up: Up) -> None:
    e = up.endpoints
    assert set(e.pids) == {"rsm", "rlmm", "rlm", "postgres", "s3"}
    assert all(getattr(e, f.name) for f in fields(e) if f.name not in EMPTY)
    for address in (e.rsm_health, e.rlmm_health, e.rlm_health):
        with grpc.insecure_channel(address) as channel:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=10)
        assert answer.status == HealthCheckResponse.SERVING


def test_up_says_that_it_serves_plaintext(up: Up) -> None:
    assert up.process.stderr is not None
    # A start of more than 4 s says so between the lines.
    said = (line for line in up.process.stderr if not line.startswith("still starting: "))
    lines = [next(said) for _ in range(6)]
    assert lines[1].startswith("serving plaintext: every user of this machine can read and delete")
    assert lines[3:] == [
        f"Sediment is up on {up.data_dir}; Ctrl-C stops it\n",
        f"in another terminal: `sediment status --data-dir {up.data_dir}`\n",
        f"in a browser: `sediment console --data-dir {up.data_dir}`\n",
    ]


def test_up_prints_one_value_of_the_running_up(up: Up, tmp_path: Path) -> None:
    printed = up.run("up", "--print", "rlm_consumers")
    assert (printed.returncode, printed.stdout) == (0, f"{up.endpoints.rlm_consumers}\n")
    unknown = up.run("up", "--print", "consumers")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "serves no consumers; choose one of rsm, rsm_health, " in unknown.stderr
    nowhere = sediment("up", "--print", "rsm", "--data-dir", tmp_path)
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert f"no `sediment up` is running on {tmp_path}; start one" in nowhere.stderr


def test_up_says_first_that_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        done = sediment("up", "--data-dir", disk.path / "data")
    assert done.returncode == 3
    assert re.search(
        rf"^sediment: no space left on {disk.path}/data \(6\d MiB free; `sediment up` needs 150 "
        r"MiB\); free some, or choose another --data-dir$",
        done.stderr,
        re.MULTILINE,
    )


def test_only_this_user_can_read_the_logs(up: Up) -> None:
    modes = {
        name: [file.stat().st_mode & 0o777 for file in up.data_dir.rglob(f"{name}.log")]
        for name in ("rsm", "rlmm", "rlm", "postgres", "weed")
    }
    assert modes == {name: [0o600] for name in modes}


def test_up_with_tls_refuses_clients_without_a_certificate(server_directory: Path) -> None:
    with running_up(server_directory / "tls", "--tls") as up:
        assert up.lines("topics", "list") == []
        files = list((up.data_dir / "tls").rglob("*"))
        assert [file for file in files if file.stat().st_mode & 0o077] == []
        assert not [file for file in files if file.name == "ca.key"]
        done = sediment("topics", "list", "--rlmm", up.endpoints.rlmm)
        assert done.returncode != 0
        assert "this client speaks plaintext" in done.stderr
        shown = sediment("status", "--rlmm", up.endpoints.rlmm, "-o", "json")
        assert "this client speaks plaintext" in json.loads(shown.stdout)["services"][1]["problem"]
        assert up.endpoints.rlm_consumers == ""


def test_kcat_reads_as_the_page_of_consumers_says(up: Up) -> None:
    page = CONSUMERS_PAGE.read_text()
    (command,) = re.findall(r"^kcat .*LISTENER.*$", page, re.MULTILINE)
    done = subprocess.run(
        ["bash", "-euc", command],
        env={**os.environ, "LISTENER": up.endpoints.rlm_consumers},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # As librdkafka reads by default.
    committed = ("--isolation", "read_committed", "--from", "beginning", "--to", "end")
    fetched = up.run("fetch", "payments-0", *committed, "-f", "%o %k %s\\n")
    assert fetched.returncode == 0, fetched.stderr
    assert done.stdout == fetched.stdout != ""


def test_no_variable_sends_a_part_of_up_or_a_command_elsewhere(
    server_directory: Path, log_dir: Path, tmp_path: Path
) -> None:
    with trap() as made:
        variables = {**made.proxies(), **made.of_libpq(tmp_path)}
        data_dir = server_directory / "trapped"
        with running_up(data_dir, "--log-dir", log_dir, environment=variables) as up:
            for command in (("selftest",), ("partitions",), ("doctor",)):
                done = sediment(*command, "--data-dir", data_dir, environment=variables)
                assert done.returncode == 0, done.stderr + done.stdout
            up.wait_until_shipped()
        assert made.reached == 0


def test_commands_beside_up_find_its_store_its_database_and_its_disk(up: Up) -> None:
    [probed] = up.lines("store", "probe")
    assert probed["usable"]
    checked = up.run("db", "check")
    assert checked.returncode == 0, checked.stderr
    assert up.run("db", "maintain").returncode == 0
    for command, key in (("status", "lines"), ("doctor", "findings")):
        [document] = up.lines(command)
        found = {each.get("what") or each["check"]: each["text"] for each in document[key]}
        assert found["disk"].startswith(f"{up.data_dir}: ")
        assert found["maintenance"].startswith("of the database, ")


def test_a_second_up_on_the_same_directory_is_refused_with_one_line(up: Up) -> None:
    done = up.run("up")
    assert done.returncode == 2
    reported = f"sediment: {up.data_dir}: another stack is running on this directory"
    assert done.stderr.splitlines()[-1].startswith(reported)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--fresh",)])
def test_up_leaves_a_directory_of_others_as_it_is(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = sediment("up", "--data-dir", tmp_path, *options)
    assert done.returncode == 2
    reported = f"sediment: {tmp_path} holds thesis.txt and is no data directory of Sediment's; "
    assert done.stderr.splitlines()[-1].startswith(reported)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("below", ["log", "log/data", "."])
def test_up_keeps_no_data_in_around_or_at_a_log_directory(tmp_path: Path, below: str) -> None:
    link_log_dir(BUNDLED_LOG, tmp_path / "log")
    before = sorted(tmp_path.rglob("*"))
    data_dir = tmp_path / below
    done = sediment("up", "--fresh", "--data-dir", data_dir, "--log-dir", tmp_path / "log")
    assert done.returncode == 2
    reported = f"sediment: {data_dir}: the log directory {tmp_path / 'log'} is the same"
    assert done.stderr.splitlines()[-1].startswith(reported)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", [("up",), ("up", "--fresh"), ("segments", "clicks-0")])
@pytest.mark.parametrize("directory", ["file", "file/data", "/proc/data", "/dev/null"])
def test_a_data_directory_that_can_be_none_is_named_in_one_line(
    tmp_path: Path, directory: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    done = sediment(*command, "--data-dir", tmp_path / directory)
    assert done.returncode == 2
    reported = done.stderr.splitlines()[-1]
    assert reported.startswith("sediment: ")
    assert str(tmp_path / directory) in reported
    assert "Traceback" not in done.stderr


# Looking at it


def test_partitions_lists_every_partition_of_the_log(up: Up) -> None:
    found = up.lines("partitions")
    names = {f"{p['topic']}-{p['partition']}" for p in found if p["local_segments"]}
    folders = {path.parent.name for path in BUNDLED_LOG.glob("[!_]*/partition.metadata")}
    assert names == folders
    clicks = next(p for p in found if (p["topic"], p["partition"]) == ("clicks", 1))
    assert (clicks["log_start_offset"], clicks["log_end_offset"]) == (5, 400)
    assert (clicks["remote_segments"], clicks["lag_segments"]) == (5, 0)
    assert clicks["copied_through_offset"] == 367
    assert clicks["role"] == "LEADER"
    _, row = up.run("partitions", "clicks-1", "-o", "wide").stdout.splitlines()
    assert re.split("  +", row)[5:8:2] == ["5-399", "367"]


def test_segments_lists_the_segments_of_a_partition_without_a_gap(up: Up) -> None:
    found = up.lines("segments", "orders.eu-west-0")
    assert [s["state"] for s in found] == ["COPY_SEGMENT_FINISHED"] * 7
    starts = [s["start_offset"] for s in found]
    assert starts == [0, *(s["end_offset"] + 1 for s in found[:-1])]
    _, *shown = up.run("segments", "orders.eu-west-0", "-o", "wide").stdout.splitlines()
    rows = [re.split("  +", line) for line in shown]
    assert [(row[2], row[-1]) for row in rows] == [("FINISHED", s["segment_id"]) for s in found]


def test_command_without_an_up_says_what_to_do(tmp_path: Path) -> None:
    done = sediment("partitions", "--data-dir", tmp_path)
    reported = (
        f"sediment: no `sediment up` is running on {tmp_path}; start one, or "
        "point --data-dir at its directory, or pass --rlm HOST:PORT\n"
    )
    assert (done.returncode, done.stderr) == (2, reported)


# Reading records


def expected_records() -> dict[tuple[str, int], list[Record]]:
    """What a real consumer read of each partition."""
    found: dict[tuple[str, int], list[Record]] = defaultdict(list)
    with gzip.open(RECORDS, "rt") as lines:
        for line in map(json.loads, lines):
            headers = [(name, _decoded(value)) for name, value in line["headers"]]
            key, value = _decoded(line["key"]), _decoded(line["value"])
            record = (line["offset"], line["timestamp_ms"], key, value, headers)
            found[line["topic"], line["partition"]].append(record)
    return found


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def as_record(printed: PrintedRecord) -> Record:
    headers = [(h["name"], _bytes_of(h, "value")) for h in printed["headers"]]
    key, value = _bytes_of(printed, "key"), _bytes_of(printed, "value")
    return printed["offset"], printed["timestamp_ms"], key, value, headers


def _bytes_of(printed: dict[str, Any], name: str) -> bytes | None:
    if name in printed:
        return None if printed[name] is None else str(printed[name]).encode()
    return _decoded(printed[f"{name}_base64"])


def test_fetch_prints_the_records_that_a_consumer_read(up: Up) -> None:
    printed = up.lines("fetch", "profiles-0", "--offset", 100, "--max-records", 50)
    expected = [r for r in expected_records()["profiles", 0] if r[0] >= 100]
    assert list(map(as_record, printed)) == expected[:50]


def test_fetch_prints_ten_records_as_lines(up: Up) -> None:
    done = up.run("fetch", "clicks-0", "--offset", 195)
    assert done.returncode == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    expected = expected_records()["clicks", 0][195:205]
    assert [(int(row[0]), row[3], row[4].encode()) for row in rows] == [
        (offset, "null", value) for offset, _, _, value, _ in expected
    ]


def test_fetch_of_an_offset_that_is_deleted_is_named(up: Up) -> None:
    done = up.run("fetch", "clicks-1", "--offset", 4)
    assert done.returncode == 2
    reported = "sediment: clicks-1 at offset 4: OFFSET_OUT_OF_RANGE: "
    assert done.stderr.startswith(reported)
    assert done.stdout == ""


def test_every_record_is_printed_from_disk_and_then_from_the_tier(up: Up, log_dir: Path) -> None:
    expected = expected_records()
    descriptions = [d for d in up.wait_until_shipped() if d.local_segments]
    assert len(descriptions) == PARTITIONS
    with up.rlm() as rlm:
        for found in descriptions:
            tp = found.topic_id_partition
            printed = list(records(rlm, tp, found.log_start_offset))
            assert list(map(as_record, printed)) == expected[tp.topic, tp.partition]
        removed = 0
        for found in descriptions:
            tp = found.topic_id_partition
            folder = log_dir / f"{tp.topic}-{tp.partition}"
            removed += unlink_segments(folder, found.copied_through_offset)
            printed = list(records(rlm, tp, found.log_start_offset))
            assert list(map(as_record, printed)) == expected[tp.topic, tp.partition]
            if found.remote_segments:
                assert printed[0]["source"] == "REMOTE"
        assert removed == SEGMENTS


# Shipping to it


@pytest.fixture
def late_log(tmp_path: Path) -> Path:
    """A log that RLM does not know, with a topic of its own."""
    log_dir = linked_log(tmp_path, ("profiles",))
    (log_dir / "profiles-0").rename(log_dir / "late-0")
    settled = log_dir / "replication-offset-checkpoint"
    offsets = settled.read_text()
    settled.unlink()  # a link to the bundled log's
    settled.write_text(offsets.replace("profiles 0", "late 0"))
    name_topics_anew(log_dir)
    return log_dir


def test_ship_finds_a_running_up_and_ships_once(up: Up, late_log: Path) -> None:
    (first,) = up.lines("ship", late_log)
    (second,) = up.lines("ship", late_log)
    assert first["outcome"] == second["outcome"] == "DONE"
    (before,), (after,) = first["partitions"], second["partitions"]
    assert (before["topic"], before["copied_segments"]) == ("late", 10)
    assert (after["copied_segments"], after["present_segments"]) == (0, 10)
    done = up.run("ship", late_log)
    (row,) = (line for line in done.stdout.splitlines() if "late-0" in line)
    assert re.split("  +", row) == ["late-0", "0", "0 B", "0", "0"]
    assert done.stderr.startswith("DONE: 0 segments (0 B)")


# Its life


@pytest.mark.long
@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_tier_outlives_every_end_of_up_but_fresh(server_directory: Path) -> None:
    data_dir = server_directory / "outliving"
    with running_up(data_dir, "--log-dir", BUNDLED_LOG) as first:
        first.wait_until_shipped()
        first.process.send_signal(signal.SIGTERM)
        output, errors = first.process.communicate(timeout=120)
        assert (first.process.returncode, output) == (0, ""), errors
        assert not [name for name, pid in first.endpoints.pids.items() if runs(pid)]
        assert sediment("partitions", "--data-dir", data_dir).returncode == 2
    with running_up(data_dir) as second:
        kept = second.lines("segments", "profiles-0")
        assert len(kept) == 10
        os.kill(second.process.pid, signal.SIGKILL)
    with running_up(data_dir) as third:
        assert third.lines("segments", "profiles-0") == kept
        printed = third.lines("fetch", "profiles-0", "--offset", 0, "--max-records", 1000)
        expected = expected_records()["profiles", 0]
        assert list(map(as_record, printed)) == expected[: len(printed)]
        assert len(printed) > 700
        third.process.send_signal(signal.SIGINT)
        assert third.process.wait(120) == 0
    with running_up(data_dir, "--fresh") as fourth:
        assert fourth.lines("partitions") == []


@pytest.mark.timeout(600)
def test_a_part_that_ends_is_started_again_at_its_address(server_directory: Path) -> None:
    data_dir = server_directory / "mended"
    with running_up(data_dir) as up:
        before = endpoints_of(data_dir)
        for name in ("rsm", "postgres", "s3"):
            kill_and_await(data_dir, name)
        assert replace(endpoints_of(data_dir), pids={}) == replace(before, pids={})
        assert sediment("selftest", "--data-dir", data_dir).returncode == 0
        for _ in range(2):
            kill_and_await(data_dir, "rsm")
        os.kill(endpoints_of(data_dir).pids["rsm"], signal.SIGKILL)
        _, errors = up.process.communicate(timeout=120)
        assert up.process.returncode == 3
    logs = [data_dir / log for log in ("services/rsm.log", "postgres/postgres.log", "s3/weed.log")]
    for name, log in zip(("rsm", "postgres", "s3"), logs, strict=True):
        assert f"{name} ended unexpectedly and was started again; see {log}.1\n" in errors
        assert Path(f"{log}.1").is_file()
    many = f"rsm ended unexpectedly, after 3 restarts within 120 s; see {logs[0]}\n"
    assert errors.endswith(f"sediment: {many}")
    with running_up(data_dir) as again:
        assert again.endpoints.rlmm == before.rlmm  # nothing else had its ports


def kill_and_await(data_dir: Path, name: str) -> None:
    """Kill a part of the stack, and wait until another process is in its place."""
    dead = endpoints_of(data_dir).pids[name]
    os.kill(dead, signal.SIGKILL)
    eventually(lambda: endpoints_of(data_dir).pids[name] != dead, deadline_ms=120_000)


def endpoints_of(data_dir: Path) -> StackEndpoints:
    found = running_stack(data_dir)
    assert found is not None
    return found


def test_a_ctrl_c_while_up_starts_stops_it_in_order(server_directory: Path) -> None:
    data_dir = server_directory / "interrupted"
    command = [sys.executable, "-m", "services.cli", "up", "--data-dir", data_dir]
    with subprocess.Popen(
        [*map(str, command)],
        env=own_environment({}),
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as up:
        eventually((data_dir / "postgres").exists)
        os.killpg(up.pid, signal.SIGINT)  # as a terminal sends it, to all of them
        _, errors = up.communicate(timeout=120)
    assert (up.returncode, errors.splitlines()[-1:]) == (0, ["stopping ..."]), errors
