"""Options of checks on Spark, and what is refused of them."""

from collections.abc import Callable, Sequence

import pytest

from services.api.errors import InvalidRequestError
from spark_jobs.checks.options import Inventory, parse_reconcile, parse_scrub

SERVICES = ("--rsm", "localhost:1", "--rlmm", "localhost:2")


def test_reconcile_only_reports_and_lists_unless_it_is_told_otherwise() -> None:
    config = parse_reconcile(SERVICES)
    assert (config.delete, config.locations, config.inventory) == (False, (0,), None)
    config = parse_reconcile(
        [
            *SERVICES,
            "--delete",
            "--grace",
            "2h",
            "--location",
            "3",
            "--inventory",
            "a.csv",
            "--bucket",
            "tier",
        ]
    )
    assert (config.delete, config.grace_ms, config.locations) == (True, 7_200_000, (3,))
    assert config.inventory == Inventory("a.csv", "tier")


def test_scrub_has_a_rate_and_parts() -> None:
    config = parse_scrub([*SERVICES, "--rate", "0", "--part", "3/28", "--topic", "orders"])
    assert (config.bytes_per_s, config.part, config.parts) == (None, 3, 28)
    assert config.options.topics == ("orders",)
    assert parse_scrub(SERVICES).bytes_per_s == 32 * 1024 * 1024


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--inventory", "a.csv"), "--bucket: name the location's bucket"),
        (("--location", "70000"), "--location: must be 0 to 65535"),
        (("--location", "1", "--location", "1"), "--location: names a location twice"),
        (
            ("--inventory", "a", "--bucket", "b", "--location", "1", "--location", "2"),
            "--inventory: is of one --location",
        ),
    ],
)
def test_reconcile_refuses_what_makes_no_sense(more: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse_reconcile([*SERVICES, *more])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--part", "3"), "--part: '3' is not I/N"),
        (("--part", "4/3"), "--part: must be I/N"),
    ],
)
def test_scrub_refuses_what_makes_no_sense(more: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse_scrub([*SERVICES, *more])


@pytest.mark.parametrize(
    ("parse", "option", "value", "rule"),
    [
        (parse_reconcile, "--grace", "-1", "must be a duration such as 8d, 1h, 30m or 5s, is '-1'"),
        (parse_scrub, "--rate", "1X", "must be a size such as 64KiB, 1M or 2GiB, is '1X'"),
    ],
)
def test_what_is_no_duration_or_size_is_refused_with_the_rule(
    parse: Callable[[Sequence[str]], object],
    option: str,
    value: str,
    rule: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse([*SERVICES, option, value])
    assert capsys.readouterr().err.endswith(f"argument {option}: {rule}\n")
