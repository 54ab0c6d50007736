"""`sediment sweep` and what a user can do wrong: one line, an exit code, nothing changed."""

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import uuid_to_text
from services.api.remote_log_metadata_manager import all_tool_runs
from services.cli.main import main
from spark_jobs import launch
from spark_jobs.options import EngineName, SweepConfig, SweepOptions, parse_sweep
from spark_jobs.sweeps import retention_sweep
from spark_jobs.sweeps.report import SweepReport
from spark_jobs.sweeps.sweep_error import SweepError
from tests.harness.eventually import eventually
from tests.harness.processes import runs
from tests.harness.tier import HOUR_MS, Tier, a_topic, ids
from tests.harness.variants import first_of
from tests.spark.commands import Swept, command, ended, plan_id_of, start, sweep
from tests.spark.tiers import due_partitions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
NOBODY = "127.0.0.1:1"
NOT_IN_SPARK_JOBS = {"--data-dir", "--output"}
BY_TIME = {"retention.ms": str(HOUR_MS)}


@pytest.fixture
def sediment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Sediment":
    return Sediment(monkeypatch, capsys)


class Sediment:
    """The command, run in this process: for what ends before Spark starts, or needs none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def sweep(self, tier: Tier, kind: str, *options: str) -> Swept:
        """`Swept.report` is that of -o json; a table is part of `stderr`."""
        _, _, *arguments = command(tier, kind, *options)
        self._monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as raised:
            main()
        assert isinstance(raised.value.code, int)
        said = self._capsys.readouterr()
        if said.out.startswith("{"):
            assert said.out.count("\n") == 1
            return Swept(raised.value.code, json.loads(said.out), said.err)
        return Swept(raised.value.code, {}, said.out + said.err)


def assert_one_line(swept: Swept, exit_code: int, *words: str) -> None:
    assert swept.exit_code == exit_code, swept.stderr
    assert swept.report == {}
    said = swept.stderr.strip().split("\n")
    lines = [line for line in said if not line.endswith(" s so far")]  # on a busy machine
    assert len([line for line in lines if line.startswith("sediment: ")]) == 1, swept.stderr
    assert len(lines) <= 2, swept.stderr
    assert all(word in lines[-1] for word in words), swept.stderr


def test_a_sweep_prints_its_report_and_says_one_line(tier: Tier, tmp_path: Path) -> None:
    [tp] = due_partitions(tier, 3)
    doomed = tier.rows(tp)
    work_dir = tmp_path / "work of 100%20 sweeps"
    swept = sweep(tier, "retention", "--topic", tp.topic, "--apply", "--work-dir", str(work_dir))
    assert swept.exit_code == 0, swept.stderr
    assert len(swept.outcomes) == len(doomed)
    plan_id = swept.report["plan_id"]
    first, *_ = swept.stderr.splitlines()  # then a line a minute
    assert first == f"sweep retention: plan {plan_id}: starting Spark"
    assert {"plan", "marked-0", "deleted-0", "spark.log"} <= set(os.listdir(work_dir / plan_id))
    assert tier.rows(tp) == []
    [recorded] = [each for each in all_tool_runs(tier.rlmm) if each.run_id == plan_id]
    assert (recorded.kind.value, recorded.outcome.value) == ("RETENTION", "DONE")
    assert (recorded.topics, recorded.counts.done_segments) == ((tp.topic,), len(doomed))


@pytest.mark.parametrize(
    ("number", "until"),
    first_of([pytest.param(signal.SIGINT, "*/plan"), pytest.param(signal.SIGTERM, "*/spark.log")]),
)
def test_a_signal_ends_it_without_a_report_or_a_process_left(
    tier: Tier, tmp_path: Path, number: signal.Signals, until: str
) -> None:
    """While Spark starts, and in the midst of its work: it cannot mark what it has planned, and so
    does not end by itself before the signal comes."""
    [tp] = due_partitions(tier, 1)
    made = tier.rows(tp)
    options = ["--topic", tp.topic, "--work-dir", str(tmp_path), "--apply"]
    with tier.held_up(tp):
        process = start(command(tier, "retention", *options))
        eventually(
            lambda: list(tmp_path.glob(until)) or process.poll() is not None, deadline_ms=300_000
        )
        assert process.poll() is None, ended(process).stderr
        mine = eventually(lambda: children(process.pid))
        process.send_signal(number)
    swept = ended(process)
    assert_one_line(swept, 128 + number, "stopped; run the command again to finish what it began")
    plan_id_of(swept)
    eventually(lambda: not any(runs(pid) for pid in mine))
    assert ids(tier.rows(tp)) == ids(made)


class SignalledFinalizer:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_comes_within_a_finalizer_is_not_lost(tier: Tier) -> None:
    rsm, rlmm = tier.rsm_process.address, tier.rlmm_process.address
    config = SweepConfig(SweepOptions(rsm, rlmm))

    def run(*_: object) -> SweepReport:
        SignalledFinalizer()
        Event().wait(60)
        raise AssertionError("not stopped")

    with pytest.raises(SweepError, match="stopped") as raised:
        launch.launch(retention_sweep.JOB, config, run, lambda _: None, None)
    logging.disable(logging.NOTSET)
    assert raised.value.exit_code == 128 + signal.SIGTERM


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_unknown_topic(sediment: Sediment, tier: Tier) -> None:
    swept = sediment.sweep(tier, "retention", "--topic", "nobody-knows-it", "--apply")
    assert_one_line(swept, 2, "'nobody-knows-it'", "--topic")


@pytest.mark.parametrize("service", ["--rsm", "--rlmm"])
def test_a_service_that_is_not_there(sediment: Sediment, tier: Tier, service: str) -> None:
    swept = sediment.sweep(tier, "removal", service, NOBODY, "--retry-for", "0.1", "--apply")
    assert_one_line(swept, 3, service.removeprefix("--"), NOBODY)


def test_the_address_of_another_service(sediment: Sediment, tier: Tier) -> None:
    rsm, rlmm = tier.rsm_process.address, tier.rlmm_process.address
    for option, address in (("--rsm", rlmm), ("--rlmm", rsm)):
        swept = sediment.sweep(tier, "retention", option, address, "--apply")
        assert_one_line(swept, 2, f"{option}: {address} is the address of another service")


def test_no_java(
    sediment: Sediment, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert_one_line(sediment.sweep(tier, "retention"), 3, "Java 17", "JAVA_HOME")


def test_a_java_that_cannot_run_spark(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'this Java is too old' >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert_one_line(sweep(tier, "retention"), 3, "this Java is too old")


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--master", "spork://x", "Master must either be yarn or start with spark"),
        ("--master", "local[x]", "Could not parse Master URL: 'local[x,4]'"),
        ("--driver-memory", "abc", "Invalid maximum heap size: -Xmxabc"),
        ("--conf", "spark.executor.memory=abc", "Executor memory must be a positive number"),
        ("--conf", "spark.task.cpus=abc", "The value 'abc' in the config \"spark.task.cpus\""),
    ],
)
def test_an_option_of_spark_that_java_cannot_read_is_refused(
    tier: Tier, option: str, value: str, reason: str
) -> None:
    swept = sweep(tier, "retention", option, value)
    assert_one_line(swept, 2, "Spark did not start: ", reason, "; check --master, --conf")


@pytest.mark.parametrize("until", ["*/spark.log", "*/plan"])
def test_a_java_that_is_killed_ends_it_with_one_line(
    tier: Tier, tmp_path: Path, until: str
) -> None:
    [tp] = due_partitions(tier, 1)
    options = ["--topic", tp.topic, "--work-dir", str(tmp_path), "--apply"]
    with tier.held_up(tp):
        process = start(command(tier, "retention", *options))
        eventually(lambda: list(tmp_path.glob(until)), deadline_ms=300_000)
        children = psutil.Process(process.pid).children
        [java] = eventually(lambda: [each for each in children() if each.name() == "java"])
        java.kill()
        swept = ended(process)
    assert_one_line(swept, 3, "Spark", "its Java process has ended: killed")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--report", "/nowhere/report.json"),
        ("--report", "x" * 250),
        ("--work-dir", sys.executable),
        ("--work-dir", f"{sys.executable}/below"),
    ],
)
def test_impossible_paths_are_reported_before_spark_starts(
    sediment: Sediment, tier: Tier, option: str, value: str
) -> None:
    assert_one_line(sediment.sweep(tier, "retention", option, value), 2, option, value)


def test_a_table_says_what_goes_and_what_was_left_out_and_why(
    sediment: Sediment, tier: Tier, tmp_path: Path
) -> None:
    unfit, rlms = a_topic()[0], a_topic()[0]
    for tp in (unfit, rlms):
        tier.fill(tp, 2)
    tier.report(unfit, 2, copied_through_offset=-1)
    tier.settings(unfit.topic_id, {**BY_TIME, "retention.bytes": "1"})
    tier.settings(rlms.topic_id, {"sediment.retention.owner": "rlm"})
    topics = ["--topic", unfit.topic, "--topic", rlms.topic]
    report = tmp_path / "report.json"
    options = ["--engine", "local", "-o", "table", "--report", str(report)]
    swept = sediment.sweep(tier, "retention", *topics, *options)
    assert swept.exit_code == 0, swept.stderr
    assert f"{unfit.topic}-0: retention.bytes not applied" in swept.stderr
    assert "1 partition skipped: sediment.retention.owner is rlm" in swept.stderr
    assert "PLANNED: 2 segments (2.0 KiB) planned" in swept.stderr
    assert json.loads(report.read_text())["totals"]["planned_segments"] == 2
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_sweep_that_fails_in_a_wave_reports_the_waves_before(tier: Tier, tmp_path: Path) -> None:
    [tp] = due_partitions(tier, 5)
    doomed = tier.rows(tp)
    rsm, rlmm = tier.rsm_process.address, tier.rlmm_process.address
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    waves = iter(range(2))

    def run(report: Path, say: Callable[[str], None], retry_for_s: float) -> dict[str, Any]:
        options = SweepOptions(
            rsm, rlmm, topics=(tp.topic,), apply=True, wave_segments=2, retry_for_s=retry_for_s,
            engine=EngineName.LOCAL, report=report,
        )  # fmt: skip
        config = SweepConfig(options)
        launch.launch(retention_sweep.JOB, config, retention_sweep.run, say, None)
        done: dict[str, Any] = json.loads(report.read_text())
        return done

    def kill_before_second_wave(phase: str) -> None:
        if phase == "marking" and next(waves) == 1:
            tier.rlmm_process.kill()

    with pytest.raises(SweepError, match=rlmm) as raised:
        run(files[0], kill_before_second_wave, 0.1)
    assert raised.value.exit_code == 3
    tier.start_rlmm()
    failed = json.loads(files[0].read_text())
    assert (failed["outcome"], failed["error"]) == ("FAILED", str(raised.value))
    assert failed["partitions"][0]["outcome"] == "REMAINING"
    rest = run(files[1], lambda _: None, 30.0)
    assert (rest["outcome"], rest["error"]) == ("DONE", None)
    deleted = [each["segment_id"] for report in (failed, rest) for each in report["segments"]]
    assert len(failed["segments"]) == 2
    assert sorted(deleted) == sorted(map(uuid_to_text, ids(doomed)))


def test_a_report_that_cannot_be_written_at_the_end_is_kept(tier: Tier, tmp_path: Path) -> None:
    [tp] = a_topic()
    tier.fill(tp, 1)
    report = tmp_path / "reports" / "report.json"
    report.parent.mkdir()
    rsm, rlmm = tier.rsm_process.address, tier.rlmm_process.address
    options = SweepOptions(rsm, rlmm, topics=(tp.topic,), report=report)

    def say(phase: str) -> None:
        if phase == "reporting":
            report.parent.rename(tmp_path / "away")

    config = SweepConfig(options)
    with pytest.raises(SweepError, match=re.escape(str(report))) as raised:
        launch.launch(retention_sweep.JOB, config, retention_sweep.run, say, None)
    assert raised.value.exit_code == 3
    kept = Path(str(raised.value).rpartition("the report is in ")[2])
    assert json.loads(kept.read_text())["outcome"] == "PLANNED"
    kept.unlink()


def test_a_failed_sweep_whose_report_cannot_be_written_says_both(
    tier: Tier, tmp_path: Path
) -> None:
    [tp] = due_partitions(tier, 5)
    rsm, rlmm = tier.rsm_process.address, tier.rlmm_process.address
    report = tmp_path / "reports" / "report.json"
    report.parent.mkdir()
    options = SweepOptions(
        rsm, rlmm, topics=(tp.topic,), apply=True, wave_segments=2, retry_for_s=0.1,
        engine=EngineName.LOCAL, report=report,
    )  # fmt: skip
    said: list[str] = []

    def fail_in_second_wave(line: str) -> None:
        said.append(line)
        if line == "marking" and said.count(line) == 2:
            tier.rlmm_process.kill()
            report.parent.rename(tmp_path / "away")

    config = SweepConfig(options)
    with pytest.raises(SweepError, match=rlmm):
        launch.launch(retention_sweep.JOB, config, retention_sweep.run, fail_in_second_wave, None)
    tier.start_rlmm()
    assert said[-1].startswith(f"{report}: No such file or directory; the report is in ")
    kept = Path(said[-1].rpartition("the report is in ")[2])
    assert json.loads(kept.read_text())["outcome"] == "FAILED"
    kept.unlink()


@pytest.mark.parametrize(
    "wrong", [["--batch-size", "0"], ["--batch-size", "1001"], ["--max-segments", "-1"]]
)
def test_the_job_names_an_option_that_is_out_of_bounds(wrong: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match=wrong[0]):
        parse_sweep("retention", "--copy-grace", ["--rsm", "a:1", "--rlmm", "b:2", *wrong])
