"""Test that the contracts are guarded: a change that breaks existing clients is refused."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hatch_build import ROOT, google_protos

BUF = Path(sys.executable).with_name("buf")
SEGMENT = "remote_log_segment.proto"
METADATA = "remote_log_metadata_manager.proto"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the contracts, as buf finds them in the repository."""
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    shutil.copytree(ROOT / "third_party", tmp_path / "third_party")
    return tmp_path


def test_the_tree_has_everything_that_a_client_compiles(tmp_path: Path) -> None:
    status = "google/rpc/status.proto"
    vendored = ROOT / "third_party" / status
    assert vendored.read_bytes() == (google_protos() / status).read_bytes()
    sources = [str(vendored), *map(str, (ROOT / "protos").rglob("*.proto"))]
    includes = [f"-I{ROOT / folder}" for folder in ("protos", "third_party")]
    command = [sys.executable, "-m", "grpc_tools.protoc", *includes, f"--python_out={tmp_path}"]
    subprocess.run([*command, *sources], check=True, capture_output=True)


def _breaking(workspace: Path) -> "subprocess.CompletedProcess[str]":
    command = [str(BUF), "breaking", "protos", "--against", "protos/contract.yaml"]
    return subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)


def _edit(workspace: Path, name: str, change: Callable[[str], str]) -> None:
    path = workspace / "protos" / "tieredstorage" / "v1" / name
    before = path.read_text()
    after = change(before)
    assert after != before
    path.write_text(after)


def test_the_contracts_as_they_are_break_nothing(workspace: Path) -> None:
    done = _breaking(workspace)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_field_more_breaks_nothing(workspace: Path) -> None:
    last = "bool txn_idx_empty = 12;"
    _edit(workspace, SEGMENT, lambda text: text.replace(last, f"{last}\n  bool more = 99;"))
    assert _breaking(workspace).returncode == 0


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (SEGMENT, "int64 end_offset = 3;", "int32 end_offset = 3;"),
        (SEGMENT, "int64 end_offset = 3;", "int64 end_offset = 30;"),
        (SEGMENT, "  int64 max_timestamp_ms = 4;\n", ""),
        (SEGMENT, "INDEX_TYPE_TRANSACTION = 4;", "INDEX_TYPE_TXN = 4;"),
        (SEGMENT, "optional bytes custom_metadata = 10;", "bytes custom_metadata = 10;"),
        (SEGMENT, 'option java_package = "io.sediment.tieredstorage.v1";\n', ""),
        (METADATA, "  rpc IsReady(IsReadyRequest) returns (IsReadyResponse);\n", ""),
    ],
    ids=[
        "type",
        "number",
        "field removed",
        "enum value",
        "presence",
        "java package",
        "rpc removed",
    ],
)
def test_change_that_would_break_a_client_is_refused(
    workspace: Path, name: str, old: str, new: str
) -> None:
    _edit(workspace, name, lambda text: text.replace(old, new))
    done = _breaking(workspace)
    assert done.returncode == 100
    assert name in done.stdout
