"""Run the example of docs/run/stores.md: another package's store, held to the suite of ours."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.shape import ROOT

# Each test runs pytest once more.
pytestmark = pytest.mark.deep

SOUND = """from services.rsm.backends.filesystem import FilesystemStorage


class TapeStorage(FilesystemStorage):
    pass
"""
FAULTS = {
    "test_a_list_has_exactly_its_prefix": """
    def list_objects(self, prefix, after=""):
        return reversed([*super().list_objects(prefix, after)])
""",
    "test_deleted_objects_are_gone": """
    def delete(self, keys):
        return super().delete(keys[:-1])
""",
    "test_of_several_objects_under_a_key_the_first_stays": """
    def put_if_absent(self, key, data):
        self.put(key, data)
        return True
""",
    "test_a_range_has_both_its_ends": """
    def fetch(self, key, start, end):
        return super().fetch(key, start, max(start, end - 1))
""",
}


def run(directory: Path, store: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the page's example in a directory of its own, over a store that is this text."""
    page = (ROOT / "docs" / "run" / "stores.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    package = directory / "my_package"
    package.mkdir()
    (package / "tape.py").write_text(store)
    (directory / "test_tape.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240)


def test_the_page_s_example_runs_every_test(tmp_path: Path) -> None:
    done = run(tmp_path, SOUND)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d\d passed in ", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("test", FAULTS)
def test_a_store_that_breaks_a_promise_fails(tmp_path: Path, test: str) -> None:
    done = run(tmp_path, SOUND.replace("    pass\n", FAULTS[test]), "-k", test)
    assert done.returncode == 1, done.stdout
    assert f"FAILED test_tape.py::TestTape::{test}" in done.stdout
