"""Test that a file is read again when it changes, and that bad contents change nothing."""

import logging
import os
import time
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.common.reloaded_file import MAX_FILE_BYTES, FileError, ReloadedFile
from tests.harness.clocks import Clock
from tests.harness.published import published


def a_number(content: bytes) -> int:
    return int(content)


def errors(name: str) -> float | None:
    return REGISTRY.get_sample_value("sediment_reloaded_file_errors_total", {"file": name})


def test_a_new_content_counts_after_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "number", Clock(100.0)
    path.write_text("1")
    file = ReloadedFile("number", path, a_number, clock)
    path.write_text("2")
    assert file.current() == 1
    clock.now_s += 1
    assert file.current() == 2


def test_a_content_that_is_swapped_by_a_link_counts(tmp_path: Path) -> None:
    """As a ConfigMap or a Secret that is mounted changes."""
    clock = Clock(100.0)
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "number").write_text(str(number))
    link = tmp_path / "data"
    link.symlink_to("v1")
    file = ReloadedFile("number", link / "number", a_number, clock)
    (tmp_path / "new").symlink_to("v2")
    os.replace(tmp_path / "new", link)
    clock.now_s += 1
    assert file.current() == 2


def test_a_bad_content_is_logged_and_counted_once_and_the_old_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "number", Clock(100.0)
    path.write_text("1")
    file = ReloadedFile("once", path, a_number, clock)
    assert errors("once") == 0
    with caplog.at_level(logging.INFO):
        path.write_text("one")
        for _ in range(5):
            clock.now_s += 1
            assert file.current() == 1
        assert errors("once") == 1
        path.unlink()
        for _ in range(5):
            clock.now_s += 1
            assert file.current() == 1
        assert errors("once") == 2
        path.write_text("3")
        clock.now_s += 1
        assert file.current() == 3
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split(": ")[0] for text in texts] == [
        f"once file {path}",
        f"once file {path}",
        "read a new once",
    ]
    assert "stays in force" in texts[0]
    assert "cannot be read: No such file" in texts[1]


def test_the_first_content_must_be_good(tmp_path: Path) -> None:
    path = tmp_path / "number"
    with pytest.raises(FileError, match=f"^first file {path}: cannot be read: No such file"):
        ReloadedFile("first", path, a_number)
    path.write_text("one")
    with pytest.raises(FileError, match=f"^first file {path}: invalid literal"):
        ReloadedFile("first", path, a_number)
    path.write_bytes(b"1" * (MAX_FILE_BYTES + 1))
    with pytest.raises(FileError, match="cannot be read: has over 1048576 bytes"):
        ReloadedFile("first", path, a_number)


def test_a_content_that_breaks_its_parser_is_a_bad_content(tmp_path: Path) -> None:
    def parse(content: bytes) -> bytes:
        if content == b"odd":
            raise NotImplementedError
        return content

    path, clock = tmp_path / "text", Clock(100.0)
    path.write_text("good")
    file = ReloadedFile("breaking", path, parse, clock)
    path.write_text("odd")
    clock.now_s += 1
    assert file.current() == b"good"
    assert errors("breaking") == 1
    with pytest.raises(FileError, match=r"cannot be parsed \(NotImplementedError\)"):
        ReloadedFile("breaking", path, parse)


def test_the_time_of_the_content_in_force_is_published(tmp_path: Path) -> None:
    def loaded_s() -> float:
        name = "sediment_reloaded_file_loaded_timestamp_seconds"
        return published(name, {"file": "timed"})

    path, clock = tmp_path / "number", Clock(100.0)
    path.write_text("1")
    began_s = time.time()
    file = ReloadedFile("timed", path, a_number, clock)
    first_s = loaded_s()
    assert began_s <= first_s <= time.time()
    path.write_text("no number")
    clock.now_s += 1
    assert file.current() == 1
    assert loaded_s() == first_s
    path.write_text("22")
    clock.now_s += 1
    assert file.current() == 22
    assert loaded_s() > first_s
