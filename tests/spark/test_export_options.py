"""The options of an export, and their page."""

import re
from pathlib import Path

import pytest

from services.api.errors import InvalidRequestError
from spark_jobs.export.options import LEASE_MS, parse_args

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "spark-export.md"
NEEDED = ["--rsm", "h:1", "--rlmm", "h:2", "--topic", "payments", "--table", "/t", "--plaintext"]


def test_an_export_has_the_name_of_its_table_and_keeps_what_it_reads() -> None:
    found = parse_args(NEEDED)
    assert (found.name, found.lease_ms) == ("/t", LEASE_MS)
    assert found.source["topic"] == "payments"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--lease-ms", "-1"), ("--name", "x" * 257), ("--max-offsets", "0"), ("--table", "a`b")],
)
def test_a_value_out_of_bounds_names_its_option(option: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{option}: "):
        parse_args([*NEEDED, option, value])


def test_the_page_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out))
    elsewhere = {"--help", "--rsm", "--rlmm", "--retry-for-s", "--plaintext", "--token-file"}
    elsewhere |= {"--tls-ca", "--tls-certificate", "--tls-key"}
    listed = set(re.findall(r"`(--[a-z][a-z-]+)`", PAGE.read_text()))
    assert known - elsewhere == listed
