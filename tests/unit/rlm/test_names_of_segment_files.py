"""Test which file names of a partition's folder are those of segments."""

from pathlib import Path

import pytest

from services.rlm.kafka_log.partition_dir import list_segments


@pytest.mark.parametrize(
    ("stem", "is_segment"),
    [
        ("00000000000000000007", True),
        ("09223372036854775807", True),
        ("09223372036854775808", False),
        ("99999999999999999999", False),
        ("0000000000000000000\N{ARABIC-INDIC DIGIT SEVEN}", False),
        ("7", False),
    ],
)
def test_a_segment_is_named_by_an_offset(tmp_path: Path, stem: str, is_segment: bool) -> None:
    (tmp_path / f"{stem}.log").write_bytes(b"")
    assert bool(list_segments(tmp_path)) is is_segment
