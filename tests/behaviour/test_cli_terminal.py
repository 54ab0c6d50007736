"""Test what commands print on a terminal of 80 columns, and when a service is away."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from uuid import UUID

import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.operations import Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.local.postgres import EmbeddedPostgres
from services.local.process import free_ports
from services.local.stack import own_environment
from tests.contract.rlmm.segments import DELETE_STARTED, finished, id_of, move
from tests.harness.processes import RlmmProcess, running_rlmm
from tests.harness.sediment_command import sediment

COLUMNS = 80
# Tests are named after them: they are the same in every process of a run.
TP = TopicIdPartition(UUID(int=0xA << 124), "customer.orders.completed.v2", 0)
NAME = f"{TP.topic}-{TP.partition}"
UNKNOWN = UUID(int=0xB << 124)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def rlmm(
    postgres: EmbeddedPostgres, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RlmmProcess]:
    url = postgres.create_database("cli_terminal", template=migrated_database)
    with running_rlmm(url, tmp_path_factory.mktemp("rlmm")) as made:
        made.client.on_partition_leadership_changes([PartitionLeadership(TP)], [], 1)
        yield made
    postgres.drop_database("cli_terminal")


@pytest.fixture(scope="module")
def segment(rlmm: RlmmProcess) -> str:
    """Return the id of a segment that has a life with long reasons, and an anomaly."""
    made = finished(rlmm.client, TP, 1_000_000, 1_999_999)
    why = MutationContext(reason="retention.ms", rule_detail="604800000 ms < 691200000 ms")
    move(rlmm.client, made, DELETE_STARTED, context=why)
    key = f"{uuid_to_text(UNKNOWN)}/customer.orders.completed.v2-0/{uuid_to_text(id_of(made))}.log"
    for topic_id in (TP.topic_id, UNKNOWN):
        seen = Anomaly(AnomalyKind.ORPHAN_OBJECTS, topic_id, 0, id_of(made), key, "1 of 3 objects")
        rlmm.client.report_anomalies([seen], "reconcile-2026-11-26")
    return uuid_to_text(id_of(made))


def on_a_terminal(rlmm: RlmmProcess, *arguments: str) -> list[str]:
    """Run a command on a terminal of 80 columns; return its lines, without colours."""
    ours, theirs = pty.openpty()
    environment = own_environment(
        {"SEDIMENT_RLMM": rlmm.address, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    )
    with subprocess.Popen(
        [sys.executable, "-m", "services.cli", *arguments],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(theirs)
        printed = b""
        while True:
            try:
                read = os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
            printed += read
        assert process.stderr is not None
        assert process.wait(60) == 0, process.stderr.read()
    os.close(ours)
    return _STYLE.sub("", printed.decode()).splitlines()


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        (["segments", NAME], ["{segment}", "DELETE_SEGMENT_STARTED", "1000000-1999999"]),
        (["events", NAME], ["{segment}", "retention.ms"]),
        (["anomalies"], ["ORPHAN_OBJECTS", "{segment}", TP.topic, uuid_to_text(UNKNOWN)]),
        (["topics", "list"], [TP.topic, uuid_to_text(TP.topic_id)]),
        (["explain", NAME, "{segment}"], ["{segment}", "DELETE_SEGMENT_STARTED"]),
        (["usage"], [TP.topic]),
    ],
    ids=lambda value: value[0],
)
def test_tables_fit_and_break_no_id_and_no_state(
    rlmm: RlmmProcess, segment: str, command: list[str], whole: list[str]
) -> None:
    lines = on_a_terminal(rlmm, *(word.format(segment=segment) for word in command))
    assert [line for line in lines if len(line) > COLUMNS] == []
    for text in whole:
        assert any(text.format(segment=segment) in line for line in lines), (text, lines)


def test_a_service_that_is_away_is_named_with_the_next_command() -> None:
    [free_port] = free_ports(1)
    done = sediment("topics", "list", "--rlmm", f"127.0.0.1:{free_port}")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert f"rlmm at 127.0.0.1:{free_port}" in line
    assert line.endswith("; `sediment doctor` shows which services answer")


@pytest.mark.parametrize("address", ["localhost", "rlmm:", ":50052", "::1:50052", "rlmm:99999"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    done = sediment("topics", "list", "--rlmm", address)
    assert done.returncode == 2
    assert f"{address!r} is not HOST:PORT" in done.stderr


@pytest.mark.parametrize("command", [[], ["topics"], ["topics", "list"], ["console"]], ids=str)
def test_h_shows_the_help(command: list[str]) -> None:
    done = sediment(*command, "-h")
    assert done.returncode == 0, done.stderr
    assert done.stdout == sediment(*command, "--help").stdout
    assert done.stdout.startswith("Usage: sediment")
