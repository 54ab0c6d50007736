"""Test `sediment offsets`, and `sediment fetch` by time and with read_committed."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from services.api.ids import uuid_to_text
from services.local.stack import own_environment
from services.records.decode import records_of
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.committed_reads import batches_in, committed_in
from tests.harness.sediment_command import Completed, sediment
from tests.harness.served import served_rlm
from tests.harness.ship_stack import BUNDLED, Stack, bundled_name, bytes_of

PAYMENTS = bundled_name("payments")
LOG = BUNDLED / "payments-0"
END = 504


@pytest.fixture
def address(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """An RLM over the bundled log; nothing is in the tier."""
    link_log_dir(BUNDLED, tmp_path / "linked")
    rlm: BrokerRemoteLogManager = stack.rlm(tmp_path / "linked")
    with served_rlm(rlm) as (_, address):
        yield address


def run(address: str, command: str, *options: object) -> Completed:
    name = f"{uuid_to_text(PAYMENTS.topic_id)}:payments-0"
    return sediment(command, name, f"--rlm={address}", f"--rlmm={address}", *options)


def lines(done: Completed) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def records(*, with_control: bool = False) -> list[tuple[int, int]]:
    """Return (time, offset) of the records, aborted ones too."""
    return [
        (record.timestamp_ms, record.offset)
        for batch in batches_in(bytes_of(LOG))
        if with_control or not batch.is_control
        for record in records_of(batch, 2**30)
    ]


def first_at(time_ms: int) -> int:
    """Return the first offset of a time or later; control records count, as in Kafka."""
    return next(offset for at, offset in records(with_control=True) if at >= time_ms)


def test_offsets_shows_starts_and_ends_and_finds_times(address: str) -> None:
    time_ms, _ = records()[100]
    done = run(address, "offsets", "-o", "json", "--time", time_ms, "--time", "2100-01-01T00:00Z")
    found = {str(line["of"]): line["offset"] for line in lines(done)}
    assert found.pop("max_timestamp") is not None
    assert found == {
        "latest": END,
        "earliest": 0,
        "earliest_local": 0,
        "latest_tiered": -1,
        "earliest_pending_upload": 0,
        str(time_ms): first_at(time_ms),
        "2100-01-01T00:00Z": -1,
    }


@pytest.mark.parametrize("command", [("offsets",), ("fetch", "--from=0")])
def test_a_partition_that_only_the_disk_has_is_found_without_rlmm(
    address: str, command: tuple[str, ...]
) -> None:
    name, *options = command
    nowhere = "--rlmm=127.0.0.1:1"
    done = sediment(name, "payments-0", f"--rlm={address}", nowhere, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 5
    unknown = sediment(name, "payments-9", f"--rlm={address}", nowhere, *options)
    assert unknown.returncode == 3
    assert "127.0.0.1:1" in unknown.stderr


def test_offsets_as_a_table(address: str) -> None:
    done = run(address, "offsets")
    assert done.returncode == 0, done.stderr
    assert "earliest_pending_upload" in done.stdout


def test_fetch_from_a_time_to_a_time(address: str) -> None:
    since, until = records()[150][0], records()[300][0]
    options = ("--from-time", since, "--to-time", until, "--max-records", 10_000, "-o", "json")
    found = [line["offset"] for line in lines(run(address, "fetch", *options))]
    wanted = range(first_at(since), first_at(until))
    assert found == [offset for _, offset in records() if offset in wanted]
    assert len(found) > 100


def test_fetch_of_committed_records(address: str) -> None:
    options = ("--offset", 0, "--max-records", 10_000, "-o", "json")
    everything = [line["offset"] for line in lines(run(address, "fetch", *options))]
    committed = lines(run(address, "fetch", *options, "--isolation", "read_committed"))
    assert everything == [offset for _, offset in records()]
    wanted, _ = committed_in(bytes_of(LOG))
    assert len(set(everything) - wanted) > 20
    assert [line["offset"] for line in committed] == sorted(wanted)


def test_fetch_the_last_records_in_a_format_of_kcat(address: str) -> None:
    done = run(address, "fetch", "--last", 3, "-f", r"%t-%p %o %K %S\x2c%%\n")
    assert done.returncode == 0, done.stderr
    wanted = lines(run(address, "fetch", "--from", END - 3, "--to", END, "-o", "json"))
    assert done.stdout.splitlines() == [
        f"payments-0 {each['offset']} {size_of(each, 'key')} {size_of(each, 'value')},%"
        for each in wanted
    ]


def size_of(printed: dict[str, object], name: str) -> int:
    text, encoded = printed.get(name), printed.get(f"{name}_base64")
    if encoded is not None:
        return len(base64.b64decode(str(encoded)))
    return -1 if text is None else len(str(text).encode())


def test_fetch_from_the_beginning_to_a_time(address: str) -> None:
    everything = records()
    until = everything[20][0]
    end = first_at(until)
    found = lines(run(address, "fetch", "--from", "beginning", "--to", "2100-01-01", "-o", "json"))
    assert [line["offset"] for line in found] == [offset for _, offset in everything]
    some = lines(run(address, "fetch", "--from=beginning", "--to-time", until, "-o", "json"))
    assert len(some) == len([offset for _, offset in everything if offset < end])
    assert run(address, "fetch", "--from", "end").stdout == ""


def test_fetch_names_aborted_and_control_records(address: str) -> None:
    options = ("--from", 0, "--to", END, "--show-transactions", "-o", "json")
    found = lines(run(address, "fetch", *options))
    kinds = {int(str(line["offset"])): line["kind"] for line in found}
    assert sorted(kinds) == [offset for _, offset in records(with_control=True)]
    committed, _ = committed_in(bytes_of(LOG))
    assert {offset for offset, kind in kinds.items() if kind == "DATA"} == committed
    control = set(kinds) - {offset for _, offset in records()}
    assert {kinds[offset] for offset in control} == {"COMMIT", "ABORT"}


@pytest.mark.parametrize("form", [(), ("-o", "json"), ("-f", "%o %s\n")])
def test_fetch_into_a_full_disk_is_one_line(address: str, form: tuple[str, ...]) -> None:
    name = f"{uuid_to_text(PAYMENTS.topic_id)}:payments-0"
    options = [f"--rlm={address}", f"--rlmm={address}", "--offset=0", *form]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", "fetch", name, *options],
            env=own_environment({}),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        3,
        "sediment: standard output: No space left on device; "
        "what was printed before is incomplete\n",
    )


@pytest.mark.parametrize("offset", ["99999", "9223372036854775807"])
def test_an_offset_that_the_log_does_not_have_is_a_mistake_of_who_typed_it(
    address: str, offset: str
) -> None:
    done = sediment("fetch", "payments-0", f"--rlm={address}", "--offset", offset)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "beyond the log end offset" in done.stderr
    assert done.stderr.endswith("; --from beginning and --last N need no offset\n")
