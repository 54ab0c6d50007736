"""Test `sediment policy check`."""

import json
from pathlib import Path

import pytest

from hatch_build import ROOT
from services.api.roles import table
from tests.harness.sediment_command import sediment

BROKER = "spiffe://example.org/ns/kafka/sa/broker-1"
ARCHIVE = "spiffe://example.org/ns/shop/sa/orders-archive"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Provide the policy of the documentation."""
    path = tmp_path / "policy.toml"
    page = (ROOT / "docs" / "run" / "security.md").read_text()
    path.write_text(page.split("```toml")[1].split("```")[0])
    return path


def test_the_grants_are_shown(file: Path) -> None:
    shown = sediment("policy", "check", file)
    assert (shown.returncode, shown.stderr) == (0, "")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[0] == ["GRANT", "ROLES", "TOPICS", "GROUPS", "IDENTITIES"]
    assert ["2", "sweeper", "*", "-", "system:serviceaccount:jobs:sediment-sweep"] in rows
    lines = sediment("policy", "check", file, "-o", "json").stdout.splitlines()
    assert [json.loads(line)["roles"] for line in lines] == [
        ["deleter", "reader", "shipper"],
        ["sweeper"],
        ["reader"],
        ["admin", "auditor"],
    ]


def test_calls_allowed_to_an_identity_are_shown(file: Path) -> None:
    shown = sediment("policy", "check", file, "--as", ARCHIVE)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert max(map(len, shown.stdout.splitlines())) <= 80
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["Fetch", "-", "orders-*"] in rows
    assert ["FetchLogSegment", "-", "-"] in rows
    assert ["AddRemoteLogSegmentMetadata", "-", "denied"] in rows
    assert ["PutRemotePartitionDeleteMetadata", "DELETE_PARTITION_MARKED", "denied"] in rows


def test_scripts_get_one_line_for_each_call(file: Path) -> None:
    def allowed(identity: str) -> dict[tuple[str, str], list[str]]:
        shown = sediment("policy", "check", file, "--as", identity, "-o", "json")
        calls = [json.loads(line) for line in shown.stdout.splitlines()]
        assert len(calls) == len(table())
        return {(c["rpc"], c.get("only", "")): c["topics"] for c in calls if c["allowed"]}

    assert allowed(ARCHIVE)["Fetch", ""] == ["orders-*"]
    assert ("ListAnomalies", "") not in allowed(ARCHIVE)
    update = "UpdateRemoteLogSegmentMetadata"
    assert allowed(BROKER)[update, "DELETE_SEGMENT_STARTED"] == ["*"]
    assert ("PutTopicConfig", "") not in allowed(BROKER)


def test_an_identity_without_grants_may_call_nothing(file: Path) -> None:
    shown = sediment("policy", "check", file, "--as", "nobody.example.org")
    assert "the policy grants nothing to nobody.example.org" in shown.stderr
    assert shown.stdout.count("  denied\n") == len(table())


def test_a_file_that_was_cut_off_is_an_error(file: Path) -> None:
    file.write_text(file.read_text().rstrip().removesuffix('topics = ["*"]'))
    refused = sediment("policy", "check", file)
    assert refused.returncode == 2
    assert "grant 4: has no topics; the file may be cut off" in refused.stderr


def test_a_file_that_a_service_would_refuse_is_an_error(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace("sweeper", "sweper"))
    refused = sediment("policy", "check", file)
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        f"sediment: policy file {file}: grant 2: unknown role 'sweper'; the roles are shipper, "
    )
    missing = sediment("policy", "check", tmp_path / "none")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "cannot be read: No such file" in missing.stderr
