"""Test what every command prints: in a terminal of 80 columns, under LC_ALL=C, and in a pipe."""

import os
import pty
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from hatch_build import ROOT
from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.operations import Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.cli.main import COMMANDS, load
from services.local.stack import own_environment
from services.rlm.manager import BrokerRemoteLogManager
from tests.contract.rlmm.segments import DELETE_STARTED, finished, id_of, move
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.sediment_command import sediment
from tests.harness.served import ServedRsm, served_rlm
from tests.harness.terminals import COLUMNS, FRAMES
from tests.harness.world import linked_log
from tests.unit.cli.test_metadata_print import SNAPSHOTS, snapshot_file

CLEAR = "\x1b[H\x1b[J"
# Tests are named after them: they are the same in every process of a run.
TP = TopicIdPartition(UUID(int=0xA << 124), "customer.orders.completed.by-region.v2", 0)
LONG = TopicIdPartition(UUID(int=0xC << 124), f"{TP.topic}.of-the-whole-company", 11)
UNKNOWN = UUID(int=0xB << 124)
rlmm, rsm, store = served_fixtures.rlmm, served_fixtures.rsm, served_fixtures.store


# Each with a text that must be whole.
COMMANDS_RUN = {
    "status": "never looked",
    "top --count 1": "BLOCKED",
    "doctor": "rlmm",
    "partitions": "BLOCKED",
    f"segments {TP.topic}-0": "DELETE_STARTED",
    f"events {TP.topic}-0": "retention.ms;",
    f"explain {TP.topic}-0": "retention.ms",
    f"explain {TP.topic}-0 {{segment}}": "{segment}",
    "offsets clicks-0": "earliest_local",
    f"retention {TP.topic}-0": f"{TP.topic}-0",
    "usage --ages --price-per-gib-month 0.02": f"{TP.topic} ",
    "anomalies": uuid_to_text(UNKNOWN),
    "verified": f"{TP.topic} ",
    "reconcile": "ORPHAN_OBJECTS",
    "scrub": "verified",
    "keys": "RSM has no ring",
    f"verify {TP.topic}-0": "damaged",
    "topics list": f"{TP.topic} ",
    f"topics show {TP.topic}": "retention.ms",
    f"holds set {TP.topic} --name audit --reason 'until the audit of the year has ended'": "audit",
    "holds": "audit",
    f"holds end {TP.topic} audit": "audit",
    f"deletions confirm {TP.topic}": "",
    "drain": "drained",
    "drain --cancel": "starts copies",
    "policy check {policy}": "reader",
    "policy check {policy} --as archive.example.org": "FetchLogSegment",
    "selftest": "",
    "sweep retention": "",
    "sweep removal": "",
    "ship {log_dir}": "clicks-1",
    "copy --adopt": "copied before",
    "restore clicks-0 restored --allow-holes": "clicks-0",
    "db current": "this release",
    "db check": "",
    "db deployment-id": "",
    "db maintain --delete-retention 30d": "",
    "store probe": "listing",
    "config check settings.env": "RSM_BUKCET",
    "fetch profiles-0 --offset 8 --max-records 1": "LOCAL",
    "fetch clicks-0 --from beginning": "LOCAL",
    "completion bash": "complete",
    "metadata print remote_log_snapshot": "RemoteLogSegmentMetadata",
}
AS_LONG_AS_THEY_ARE = ("fetch clicks", "metadata print")
"""A line for each record, as long as its value."""
WITHOUT_END = {"up", "console"}
"""They run until Ctrl-C: tests/deep/test_up_in_a_terminal.py and tests/console."""

DRIVER = """
import shlex, sys
from services.cli import main
main.guard_standard_output()
for line in sys.argv[1:]:
    for stream in (sys.stdout, sys.stderr):
        print(f"$ {line}", file=stream, flush=True)
    try:
        main.app(args=shlex.split(line), prog_name="sediment")
    except SystemExit as e:
        if e.code not in (0, 1, None):
            print(f"EXIT {e.code}", flush=True)
"""


@dataclass
class Small:
    """The addresses of a small tier's services, and the names of what is in it."""

    variables: dict[str, str]
    segment: str
    policy: Path
    log_dir: Path

    def commands(self) -> dict[str, str]:
        values = vars(self)
        return {c.format(**values): whole.format(**values) for c, whole in COMMANDS_RUN.items()}

    def printed(
        self, *, is_terminal: bool, errors: bool = False, **variables: str
    ) -> dict[str, list[str]]:
        """Run all commands in one process; return the lines of each on standard output.

        Args:
            errors: return those on standard error instead.
        """
        ours, theirs = pty.openpty() if is_terminal else os.pipe()
        environment = own_environment(
            {**self.variables, "COLUMNS": str(COLUMNS), "LINES": "24", "TERM": "xterm", **variables}
        )
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER, *self.commands()],
            env=environment,
            cwd=self.policy.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if errors else theirs,
            stderr=theirs if errors else subprocess.DEVNULL,
        ) as process:
            os.close(theirs)
            printed = b"".join(iter(lambda: _read(ours), b""))
            assert process.wait(60) == 0
        os.close(ours)
        shown: dict[str, list[str]] = {}
        for line in printed.decode().splitlines():
            if line.startswith("$ "):
                lines = shown.setdefault(line[2:], [])
            else:
                lines.append(line)
        return shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other side is closed
        return b""


@pytest.fixture
def small(rlmm: RlmmProcess, rsm: ServedRsm, database_url: str, tmp_path: Path) -> Iterator[Small]:
    """A tier with long names and reasons, anomalies, and an RLM with a local log."""
    rlmm.client.on_partition_leadership_changes(
        [PartitionLeadership(TP), PartitionLeadership(LONG)], [], 1
    )
    rlmm.client.put_topic_config(TP.topic_id, {"retention.ms": "604800000"}, 0, MutationContext())
    made = finished(rlmm.client, TP, 1_000_000, 1_999_999)
    why = MutationContext(reason="retention.ms", rule_detail="604800000 ms < 691200000 ms, größer")
    move(rlmm.client, made, DELETE_STARTED, context=why)
    finished(rlmm.client, LONG, 0, 9)
    segment = uuid_to_text(id_of(made))
    for topic_id in (TP.topic_id, UNKNOWN):
        key = f"{uuid_to_text(topic_id)}/{TP.topic}-0/{segment}.log"
        seen = Anomaly(AnomalyKind.ORPHAN_OBJECTS, topic_id, 0, id_of(made), key, "1 of 3 objects")
        rlmm.client.report_anomalies([seen], "reconcile-2026-11-26")
    page = (ROOT / "docs" / "run" / "security.md").read_text()
    (tmp_path / "policy.toml").write_text(page.split("```toml")[1].split("```")[0])
    log_dir = linked_log(tmp_path, ("clicks", "profiles"))
    snapshot_file(tmp_path, SNAPSHOTS)
    (tmp_path / "settings.env").write_text(f"RSM_BACKEND=s3\nRSM_BUKCET={'long-name-' * 9}\n")
    rlm = BrokerRemoteLogManager([log_dir], rsm.client, rlmm.client)
    with served_rlm(rlm) as (_, address):
        services = {"RSM": rsm.address, "RLMM": rlmm.address, "RLM": address}
        variables = {f"SEDIMENT_{name}": value for name, value in services.items()}
        (tmp_path / "probed").mkdir()
        (tmp_path / "restored").mkdir()
        shutil.copy(log_dir / "meta.properties", tmp_path / "restored")
        variables |= {
            "RLMM_DATABASE_URL": database_url,
            "RSM_BACKEND": "filesystem",
            "RSM_DIRECTORY": "probed",
        }
        yield Small(variables, segment, tmp_path / "policy.toml", log_dir)
    rlm.stop(1.0)


def test_every_command_is_here() -> None:
    named = {shlex.split(command)[0] for command in COMMANDS_RUN}
    assert named | WITHOUT_END == set(COMMANDS)
    assert all(load(name) for name in named)


@pytest.mark.parametrize("locale", ["C.UTF-8", pytest.param("C", marks=pytest.mark.deep)])
def test_a_terminal_of_80_columns_shows_whole_words(small: Small, locale: str) -> None:
    printed = small.printed(is_terminal=True, LC_ALL=locale)
    assert [*printed] == [*small.commands()]
    for command, whole in small.commands().items():
        lines = printed[command]
        if not command.startswith(AS_LONG_AS_THEY_ARE):
            assert [line for line in lines if len(line) > COLUMNS] == [], command
        assert not whole or any(whole in line for line in lines), (command, lines)
        assert not any(line.startswith("EXIT") for line in lines), (command, lines)
        seen = "".join(lines).replace(CLEAR, "") if command.startswith("top ") else "".join(lines)
        assert not any(each in seen for each in FRAMES), (command, lines)
    every_line = [line for lines in printed.values() for line in lines]
    assert all(map(str.isascii, every_line)) == (locale != "C.UTF-8")
    mark = "…" if locale == "C.UTF-8" else "..."
    assert any(f"{LONG.topic[:20]}" in line and mark in line for line in every_line)


@pytest.mark.deep
def test_a_pipe_gets_whole_lines_one_for_each_record(small: Small) -> None:
    printed = small.printed(is_terminal=False)
    assert [*printed] == [*small.commands()]
    every_line = [line for lines in printed.values() for line in lines]
    assert not any(each in line for line in every_line for each in f"…{FRAMES}")
    _, first, second = printed["topics list"]
    assert (first.split()[0], second.split()[0]) == (TP.topic, LONG.topic)
    assert len(printed[f"events {TP.topic}-0"]) == 5


@pytest.mark.deep
def test_what_is_said_beside_it_has_no_frames_colours_or_other_letters(small: Small) -> None:
    printed = small.printed(is_terminal=False, errors=True, LC_ALL="C")
    every_line = [line for lines in printed.values() for line in lines]
    assert any("nothing was changed" in line for line in every_line)
    assert not any(each in line for line in every_line for each in FRAMES)
    assert all(map(str.isascii, every_line))


@pytest.mark.parametrize("command", [[], ["topics"], ["topics", "list"], ["console"]], ids=str)
def test_h_shows_the_help(command: list[str]) -> None:
    done = sediment(*command, "-h")
    assert done.returncode == 0, done.stderr
    assert done.stdout == sediment(*command, "--help").stdout
    assert done.stdout.startswith("Usage: sediment")
