"""Check that docs/reference/config.md matches the settings classes."""

from pathlib import Path

from services.rlm.roles.partition_roles import PartitionSource
from tools.reference import config_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text().strip() == config_markdown().strip(), "run `make docs`"


def test_every_setting_has_a_description() -> None:
    rows = [line for line in config_markdown().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.split("|")[3].strip() in ("", "None")] == []


def test_no_secret_has_a_printed_default() -> None:
    assert "SecretStr" not in config_markdown()


def test_a_printed_default_can_be_set() -> None:
    """As it stands on the page: a default that is one of several is told by its value."""
    source = next(line for line in config_markdown().splitlines() if "RLM_PARTITION_SOURCE" in line)
    assert PartitionSource(source.split("|")[2].strip(" `")) is PartitionSource.STATIC
