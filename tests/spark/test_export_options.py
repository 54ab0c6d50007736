"""The options of an export, their page, and the leases that they give."""

import re
from pathlib import Path

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from spark_jobs.export.job import run_as_program
from spark_jobs.export.leases import Leases
from spark_jobs.export.options import LEASE_MS, parse_args
from spark_jobs.records.options import records_options
from spark_jobs.records.tier import TierReader
from tests.harness.tier import a_topic
from tests.spark.made_logs import copied, plain
from tests.spark.records_reads import ServedTier

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "use" / "spark.md"
NEEDED = ["--rsm", "h:1", "--rlmm", "h:2", "--topic", "payments", "--table", "/t", "--plaintext"]


def test_an_export_has_the_name_of_its_table_and_keeps_what_it_reads() -> None:
    found = parse_args(NEEDED)
    assert (found.name, found.lease_ms) == ("/t", LEASE_MS)
    assert found.source["subscribe"] == "payments"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--name", "x" * 257), ("--max-offsets", "0"), ("--table", "a`b")],
)
def test_a_value_out_of_bounds_names_its_option(option: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{option}: "):
        parse_args([*NEEDED, option, value])


def test_a_lease_that_is_no_duration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args([*NEEDED, "--lease", "-1"])
    assert "--lease: must be a duration such as 8d" in capsys.readouterr().err


def test_the_page_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out))
    elsewhere = {"--help", "--rsm", "--rlmm", "--retry-for", "--plaintext", "--token-file"}
    elsewhere |= {"--tls-ca", "--tls-certificate", "--tls-key"}
    listed = set(re.findall(r"`(--[a-z][a-z-]+)`", PAGE.read_text()))
    assert known - elsewhere == listed


def test_leases_of_partitions_whose_turn_is_to_come_are_renewed(in_process: ServedTier) -> None:
    tier, minute = in_process, 60_000
    first, second, removed = (a_topic()[0] for _ in range(3))
    for tp in (first, second):
        copied(tier, tp, 0, [plain(0, [b"a", b"b"])])
    now_s = 1_000.0

    def until_ms(tp: TopicIdPartition) -> int:
        [position] = tier.rlmm.partition_state(tp).value.holds
        assert position.until_ms is not None
        return position.until_ms

    reader = TierReader(tier.rlmm, tier.rsm)
    leases = Leases(reader, "e", minute, [first, second, removed], lambda: now_s)
    leases.begin()
    begun = until_ms(second)
    leases.turn(first, 0)
    now_s += 14.9
    leases.committed(first, 1)
    assert until_ms(second) == begun
    now_s += 0.1
    leases.committed(first, 2)
    assert until_ms(second) > begun
    [position] = tier.rlmm.partition_state(first).value.holds
    assert position.first_offset == 2


def test_an_export_without_delta_ends_before_spark_starts(
    in_process: ServedTier, capsys: pytest.CaptureFixture[str]
) -> None:
    [tp] = a_topic()
    copied(in_process, tp, 0, [plain(0, [b"a"])])
    to_tier = ["--rsm", in_process.rsm_address, "--rlmm", in_process.rlmm_address]
    assert run_as_program([*to_tier, "--topic", tp.topic, "--table", "/t"]) == 2
    assert "make install-export" in capsys.readouterr().err


def test_a_host_that_does_not_exist_is_named() -> None:
    nowhere = {"rsm": "nowhere.invalid:1", "rlmm": "nowhere.invalid:2", "plaintext": "true"}
    given, _ = records_options({"subscribe": "payments", **nowhere})
    services = given.services("rlmm", "rsm")
    with pytest.raises(InvalidRequestError, match=r"--rlmm: there is no host nowhere\.invalid"):
        services.require_reachable()
