"""Test the layout of tables, in a terminal of 80 columns and in a pipe."""

import pytest

from services.cli.tables import Wide, cut, table_lines

NAME = "a" * 38 + "-0"
COLUMNS = ("partition", Wide("id"), "size", "count", "why")
REASON = "retention.ms breached: 604800000 ms < 691200000 ms since the latest record"


def test_numbers_stand_right_and_a_pipe_gets_whole_lines_without_spaces_at_the_end() -> None:
    rows = [("orders-0", "x", "1.5 KiB", 1_234, "-"), ("b-1", "y", "200 B", 7, REASON)]
    assert table_lines(COLUMNS, rows) == [
        "PARTITION     SIZE  COUNT  WHY",
        "orders-0   1.5 KiB  1,234  -",
        f"b-1          200 B      7  {REASON}",
    ]


def test_text_is_wrapped_beside_the_columns_or_below_them() -> None:
    beside = table_lines(COLUMNS, [("b-1", "y", "200 B", 7, REASON)], width=80)
    assert beside == [
        "PARTITION   SIZE  COUNT  WHY",
        "b-1        200 B      7  retention.ms breached: 604800000 ms < 691200000 ms",
        "                         since the latest record",
    ]
    assert table_lines(COLUMNS, [(NAME, "y", "200 B", 7, REASON)], width=70) == [
        f"{'PARTITION':40}   SIZE  COUNT",
        "    WHY",
        f"{NAME}  200 B      7",
        "    retention.ms breached: 604800000 ms < 691200000 ms since the",
        "    latest record",
    ]


@pytest.mark.parametrize(("encoding", "mark"), [("ascii", "..."), ("utf-8", "…")])
@pytest.mark.parametrize("length", [3, 40, 42, 249])
def test_only_names_of_more_than_40_characters_are_cut_and_in_the_middle(
    length: int, encoding: str, mark: str
) -> None:
    columns = ("partition", "local", "tier", "lag", "blocked")
    name = "orders." + "x" * (length - 9) + "-7"
    row = (name[-length:], "1023 KiB", "1023 MiB", "1023 GiB", 1_000)
    head, line = table_lines(columns, [row], width=80, encoding=encoding)
    assert max(len(head), len(line)) <= 80
    assert (mark in line) == (length > 40)
    assert line.split()[0].endswith(name[-2:][-length:])


def test_a_cut_keeps_start_and_end() -> None:
    assert cut("customer.orders-0", 12, "...") == "custo...rs-0"
    assert cut("short", 12, "...") == "short"


def test_wide_tables_have_all_columns() -> None:
    head, line = table_lines(COLUMNS, [(NAME * 3, "x", "1 B", 1, REASON)], is_wide=True)
    assert head.split() == ["PARTITION", "ID", "SIZE", "COUNT", "WHY"]
    assert NAME * 3 in line
    assert line.endswith(REASON)


def test_ten_thousand_rows_have_one_line_each() -> None:
    rows = [(f"orders-{n}", "x", f"{n} B", n, REASON) for n in range(10_000)]
    assert len(table_lines(COLUMNS, rows)) == 10_001
    assert all(len(line) <= 80 for line in table_lines(COLUMNS, rows, width=80))
