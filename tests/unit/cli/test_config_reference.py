"""docs/config.md is what the settings classes say."""

from pathlib import Path

from services.cli.config_reference import config_markdown

PAGE = Path(__file__).parents[3] / "docs" / "config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text().strip() == config_markdown().strip(), "run `make docs`"


def test_every_setting_says_what_it_means() -> None:
    rows = [line for line in config_markdown().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.split("|")[3].strip() in ("", "None")] == []


def test_no_secret_has_a_printed_default() -> None:
    assert "SecretStr" not in config_markdown()
