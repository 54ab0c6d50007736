"""Test `sediment restore`: what it writes, of which range, and what it refuses."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.lineage import Lineage
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.api.topic_config import RetentionOwner
from services.records.batches import Batch, MemoryWindow, walk_batches
from services.records.index_files import open_transactions, parse_aborted_txns
from services.records.segment_indexes import IndexBuilder
from services.rlm.kafka_log.checkpoints import read_offset_checkpoint, read_partition_metadata
from services.rlm.kafka_log.partition_dir import list_segments, list_snapshots, read_lineage
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files
from tests.contract.rlmm.segments import DELETE_FINISHED, DELETE_STARTED, move
from tests.contract.test_rsm_transformed import ZSTD, encrypting
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.retained_log import PYTHON_HOLDER, other_process
from tests.harness.served import ServedRsm, serving
from tests.harness.small_limits import small_disk
from tests.harness.tier import SmallTier, a_topic, segment
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    PartitionFiles,
    batch,
    in_transaction,
    marker,
    producer_snapshot,
    with_epochs,
    write_log_dir,
)

rlmm, rsm, store = served_fixtures.rlmm_with_rsm, served_fixtures.rsm, served_fixtures.store

EPOCHS = ((0, 0), (2, 15))
ENDLESS = 10**9


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "broker")


@pytest.fixture
def tier(rlmm: RlmmProcess, rsm: ServedRsm) -> SmallTier:
    return SmallTier(rsm.client, rlmm.client)


def batches_from(base_offset: int, count: int = 2) -> list[bytes]:
    """Batches of five offsets, each 100 ms after the one before."""
    return [
        batch(at, 5, payload=b"%05d" % at * 1000, timestamp_ms=1_000 + at * 20)
        for at in range(base_offset, base_offset + 5 * count, 5)
    ]


def copied(
    tier: SmallTier,
    tp: TopicIdPartition,
    batches: Sequence[bytes],
    *,
    epochs: Sequence[tuple[int, int]] = EPOCHS,
    open_at_end: dict[int, int] | None = None,
    aborted: bytes = b"",
    **fields: Any,
) -> RemoteLogSegmentMetadata:
    """Copy a segment with these batches into the tier."""
    log = with_epochs(b"".join(batches), epochs)
    walked = list(walk_batches(MemoryWindow(log), 0, len(log), 0, verify=False))
    start, end = walked[0].base_offset, walked[-1].last_offset
    known = Lineage(segment_leader_epochs(epochs))
    made = segment(
        tp,
        0,
        segment_size_in_bytes=len(log),
        max_timestamp_ms=max(each.max_timestamp_ms for each in walked),
        segment_leader_epochs=known.between(start, end + 1),
        **fields,
    )
    made = replace(made, start_offset=start, end_offset=end)
    history = known.before(end + 1).entries
    lines = [f"{each.leader_epoch} {each.start_offset}" for each in history]
    indexes = {
        IndexType.OFFSET: b"",
        IndexType.TIMESTAMP: b"",
        IndexType.PRODUCER_SNAPSHOT: producer_snapshot(open_at_end),
        IndexType.TRANSACTION: aborted,
        IndexType.LEADER_EPOCH: "\n".join(["0", str(len(lines)), *lines, ""]).encode(),
    }
    return tier.copy(made, Files(log, indexes))


def three(tier: SmallTier, tp: TopicIdPartition) -> bytes:
    """Copy offsets 0 to 29 by three segments; return their bytes."""
    for base in (0, 10, 20):
        copied(tier, tp, batches_from(base))
    return with_epochs(b"".join(batches_from(0, 6)), EPOCHS)


def log_of(folder: Path) -> bytes:
    return b"".join(each.log_path.read_bytes() for each in list_segments(folder))


def walked(folder: Path) -> list[Batch]:
    """Return the restored batches; fail if one is damaged, or an index is not theirs."""
    found: list[Batch] = []
    for each in list_segments(folder):
        log, builder = each.log_path.read_bytes(), IndexBuilder(each.base_offset)
        for one in walk_batches(MemoryWindow(log), 0, len(log), each.base_offset, verify=True):
            builder.observe(one)
            found.append(one)
        assert each.file(".index").read_bytes() == builder.offset_index()
        assert each.file(".timeindex").read_bytes() == builder.time_index()
    return found


def offsets(folder: Path) -> list[int]:
    return [at for each in walked(folder) for at in range(each.base_offset, each.last_offset + 1)]


def restore(rlmm: RlmmProcess, *arguments: object) -> dict[str, Any]:
    """Restore one partition; return what the command prints of it."""
    (printed,) = rlmm.answers("restore", *arguments)
    (partition,) = printed["partitions"]
    found: dict[str, Any] = partition
    return found


@pytest.mark.deep
def test_a_compressed_and_encrypted_partition_is_as_the_broker_had_it(
    rlmm: RlmmProcess, tmp_path: Path, log_dir: Path
) -> None:
    (tmp_path / "sealed").mkdir()
    plain = RsmSettings(backend="filesystem", directory=tmp_path / "sealed")
    (tp,) = a_topic("orders")
    with serving(encrypting(plain, tmp_path, ZSTD)) as rsm:
        log = three(SmallTier(rsm.client, rlmm.client), tp)
        rlmm.beside(SEDIMENT_RSM=rsm.address).answers("restore", "orders-0", log_dir)
    stored = [each.stat().st_size for each in (tmp_path / "sealed").rglob("*.log")]
    assert 0 < sum(stored) < len(log) / 2
    folder = log_dir / "orders-0"
    assert log_of(folder) == log
    assert offsets(folder) == list(range(30))
    assert read_lineage(folder) == Lineage(segment_leader_epochs(EPOCHS))


def test_a_whole_partition_is_as_the_broker_had_it(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path
) -> None:
    tp, other = a_topic("orders", 2)
    log, other_log = three(tier, tp), three(tier, other)
    high_watermarks = log_dir / "replication-offset-checkpoint"
    high_watermarks.write_text("0\n2\nother 0 7\norders 0 3\n")
    rlmm.answers("restore", "orders-0", "orders-1", log_dir)
    folder = log_dir / "orders-0"
    assert (log_of(folder), log_of(log_dir / "orders-1")) == (log, other_log)
    assert sorted(each.name for each in log_dir.glob("orders*")) == ["orders-0", "orders-1"]
    assert read_partition_metadata(folder, "orders", 0) == tp
    assert read_lineage(folder) == Lineage(segment_leader_epochs(EPOCHS))
    assert list_snapshots(folder) == [10, 20, 30]
    assert {each.suffix for each in folder.iterdir()} == {
        *(".log", ".index", ".timeindex", ".snapshot", ".metadata", ""),
    }
    ends = {("orders", 0): 30, ("orders", 1): 30}
    assert read_offset_checkpoint(high_watermarks) == {("other", 0): 7, **ends}
    assert read_offset_checkpoint(log_dir / "recovery-point-offset-checkpoint") == ends
    starts = read_offset_checkpoint(log_dir / "log-start-offset-checkpoint")
    assert starts == {("orders", 0): 0, ("orders", 1): 0}


def test_a_new_topic_has_one_leader_epoch(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path
) -> None:
    (tp,) = a_topic("orders")
    three(tier, tp)
    (again,) = a_topic("again")
    made_by_broker = PartitionFiles(log_dir, again)
    made_by_broker.file(0, ".log").touch()
    found = restore(rlmm, "orders-0", log_dir, "--as", "again", "--from", 12)
    assert found["restored_as"]["topic_id"] == uuid_to_text(again.topic_id)
    folder = made_by_broker.path
    assert log_of(folder) == with_epochs(b"".join(batches_from(10, 4)), [(0, 0)])
    assert read_lineage(folder) == Lineage(segment_leader_epochs([(0, 12)]))
    starts = read_offset_checkpoint(log_dir / "log-start-offset-checkpoint")
    assert starts == {("again", 0): 12}
    assert not (folder / "restore.plan").exists()


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        (("--from", 10), 10, 30),
        (("--from", 13, "--to", 20), 10, 20),
        (("--to", 18), 0, 15),
        (("--to", 15), 0, 15),
        # Batch 15 has the time 1300 ms; no record before it is as late.
        (("--before", "1300"), 0, 15),
        (("--before", "1201"), 0, 15),
        (("--before", "1200"), 0, 10),
        (("--before", "9999"), 0, 30),
        (("--before", "1300", "--to", "5"), 0, 5),
    ],
)
def test_a_range_ends_between_two_batches(
    rlmm: RlmmProcess,
    tier: SmallTier,
    log_dir: Path,
    options: Sequence[object],
    first: int,
    end: int,
) -> None:
    (tp,) = a_topic("orders")
    three(tier, tp)
    found = restore(rlmm, "orders-0", log_dir, *options)
    folder = log_dir / "orders-0"
    assert offsets(folder) == [*range(first, end)]
    assert found["end_offset"] == list_snapshots(folder)[-1] == end
    (entry,) = read_lineage(folder).entries[-1:]
    assert entry.leader_epoch == (2 if end > 15 else 0)


def test_transactions_of_a_part_are_rebuilt(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path
) -> None:
    """Producer 7 begins in the first segment and aborts in the second; 8 is open at the cut."""
    (tp,) = a_topic("orders")
    none = ((0, 0),)
    copied(tier, tp, [in_transaction(0, 7, 5)], epochs=none, open_at_end={7: 0})
    second = [in_transaction(5, 8, 5), marker(10, 7, ABORT), batch(11, 5), batch(16, 5)]
    copied(tier, tp, second, epochs=none, open_at_end={})
    found = restore(rlmm, "orders-0", log_dir, "--to", 18)
    folder = log_dir / "orders-0"
    (aborted,) = parse_aborted_txns((folder / f"{5:020}.txnindex").read_bytes())
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, 0, 10)
    assert open_transactions((folder / f"{16:020}.snapshot").read_bytes()) == {8: 5}
    assert found["open_transactions"] == [{"producer_id": 8, "start_offset": 5}]


def test_each_offset_comes_once(rlmm: RlmmProcess, tier: SmallTier, log_dir: Path) -> None:
    """Beside a tail, a copy of another leader with other borders, and a dead branch."""
    (tp,) = a_topic("orders")
    copied(tier, tp, batches_from(0, 2))
    copied(tier, tp, batches_from(0, 1))
    copied(tier, tp, batches_from(5, 4))
    dead = [batch(at, 5, payload=b"dead") for at in range(15, 40, 5)]
    copied(tier, tp, dead, epochs=((0, 0), (1, 15)))
    copied(tier, tp, batches_from(25, 2))
    restore(rlmm, "orders-0", log_dir)
    folder = log_dir / "orders-0"
    assert log_of(folder) == with_epochs(b"".join(batches_from(0, 7)), EPOCHS)
    assert offsets(folder) == [*range(35)]
    assert [each.base_offset for each in list_segments(folder)] == [0, 10, 25]
    assert list_snapshots(folder) == [10, 25, 35]


def test_what_is_not_in_the_tier_comes_from_a_local_log(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path, tmp_path: Path
) -> None:
    (tp,) = a_topic("orders")
    three(tier, tp)
    local = PartitionFiles(write_log_dir(tmp_path / "local"), tp)
    local.epochs(*EPOCHS, (3, 40))
    local.segment(30, batches_from(30))
    torn = batch(45, 5, payload=b"torn")[:-1]
    local.segment(40, [*batches_from(40, 1), torn])
    found = restore(rlmm, "orders-0", log_dir, "--local", tmp_path / "local")
    folder = log_dir / "orders-0"
    assert found["end_offset"] == 45
    assert log_of(folder) == with_epochs(b"".join(batches_from(0, 9)), (*EPOCHS, (3, 40)))
    assert read_lineage(folder) == Lineage(segment_leader_epochs((*EPOCHS, (3, 40))))


def test_a_topic_that_was_deleted_comes_from_what_is_kept(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path
) -> None:
    (tp,) = a_topic("orders")
    by_broker = MutationContext(retention_owner=RetentionOwner.BROKER)
    for base in (0, 10):
        made = copied(tier, tp, batches_from(base))
        move(rlmm.client, made, DELETE_STARTED, DELETE_FINISHED, context=by_broker)
    assert "--kept adds what a broker deleted" in rlmm.refusal("restore", "orders-0", log_dir)
    tier.remove(tp)
    restore(rlmm, "orders-0", log_dir, "--kept")
    assert log_of(log_dir / "orders-0") == with_epochs(b"".join(batches_from(0, 4)), EPOCHS)


def test_offsets_that_are_missing_are_named(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path
) -> None:
    (tp,) = a_topic("orders")
    for base in (0, 20):
        copied(tier, tp, batches_from(base))
    refused = rlmm.refusal("restore", "orders-0", log_dir)
    assert "orders-0: offsets 10 to 19 are missing" in refused
    assert "30 to 49 are" in rlmm.refusal("restore", "orders-0", log_dir, "--from=20", "--to=50")
    assert not [*log_dir.glob("orders*")]
    found = restore(rlmm, "orders-0", log_dir, "--allow-holes")
    assert found["missing"] == [{"start_offset": 10, "end_offset": 19}]
    assert offsets(log_dir / "orders-0") == [*range(10), *range(20, 30)]


def test_bad_input_is_named_and_leaves_nothing(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path, tmp_path: Path
) -> None:
    tp, _ = a_topic("orders", 2)
    three(tier, tp)
    leads = [PartitionLeadership(tp, 0)]
    rlmm.client.on_partition_leadership_changes(leads, [], broker_id=1, cluster_id="other")

    def refusal(*arguments: object) -> str:
        return rlmm.refusal("restore", *arguments)

    assert "no partition payments-0" in refusal("payments-0", log_dir)
    assert "has no cluster.id" in refusal("orders-0", tmp_path / "nowhere")
    assert "is of cluster c, and orders-0 of other" in refusal("orders-0", log_dir)
    options = ("orders-0", log_dir, "--as", "again")
    assert "create the topic with a replica on this broker" in refusal(*options)
    with other_process(PYTHON_HOLDER, log_dir):
        assert "stop the broker first" in refusal(*options)
    again = PartitionFiles(log_dir, a_topic("again")[0])
    again.segment(0, batches_from(0, 1))
    assert "again-0: has records" in refusal(*options)
    again.file(0, ".log").write_bytes(b"")
    assert "two of the named" in refusal("orders-0", *options)
    for nothing in (("--before", "1"), ("--from", ENDLESS)):
        done = rlmm.sediment("restore", *options, *nothing)
        assert done.returncode in (1, 2)
        assert "no record is in this range" in done.stderr
    assert [each.name for each in log_dir.glob("*again*")] == ["again-0"]
    assert not [*log_dir.glob("*checkpoint")]


def test_a_damaged_segment_stops_its_partition_alone(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path
) -> None:
    tp, other = a_topic("orders", 2)
    log = three(tier, tp)
    copied(tier, other, batches_from(0))
    spoiled = batches_from(10)
    spoiled[1] = spoiled[1][:-1] + b"!"
    copied(tier, other, spoiled)
    done = rlmm.sediment("restore", "orders-0", "orders-1", log_dir)
    assert done.returncode == 1
    assert "wrong CRC-32C (batch at offset 15" in done.stderr
    assert log_of(log_dir / "orders-0") == log
    assert [each.name for each in log_dir.glob("orders-1*")] == ["orders-1.restoring"]
    shutil.rmtree(log_dir / "orders-1.restoring")
    restore(rlmm, "orders-1", log_dir, "--to", 15)
    assert offsets(log_dir / "orders-1") == [*range(15)]


@pytest.mark.deep
@pytest.mark.parametrize("place", ["restore.segment", "restore.recorded"])
def test_a_restore_that_is_killed_is_continued(
    rlmm: RlmmProcess, tier: SmallTier, log_dir: Path, place: str
) -> None:
    (tp,) = a_topic("orders")
    log = three(tier, tp)
    (again,) = a_topic("again")
    PartitionFiles(log_dir, again).file(0, ".log").touch()
    arguments = ("restore", "orders-0", str(log_dir), "--as", "again")
    killed = subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        env={
            **os.environ,
            **rlmm.variables,
            "SEDIMENT_RLMM": rlmm.address,
            "SEDIMENT_FAILPOINT": place,
        },
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    refused = rlmm.refusal(*arguments, "--to", 20)
    assert "is of a restore with other options" in refused
    # What is finished is not fetched again.
    rows = tier.rows(tp) if place != "restore.segment" else tier.rows(tp)[:1]
    for row in rows[:-1] if len(rows) > 1 else rows:
        tier.rsm.delete_log_segment_data(row)
    found = restore(rlmm, *arguments[1:])
    assert found["resumed_segments"] == len(rows)
    assert log_of(log_dir / "again-0") == with_epochs(log, [(0, 0)])


@pytest.mark.deep
def test_a_disk_that_fills_is_named_and_the_restore_continued(
    rlmm: RlmmProcess, tier: SmallTier, tmp_path: Path
) -> None:
    (tp,) = a_topic("orders")
    log = three(tier, tp)
    with small_disk(tmp_path / "disk", 128 * 1024) as disk:
        log_dir = write_log_dir(disk.path / "broker")
        filler = disk.path / "large"
        filler.write_bytes(bytes(72 * 1024))
        done = rlmm.sediment("restore", "orders-0", log_dir)
        assert done.returncode == 3, done.stderr
        assert "No space left on device" in done.stderr
        assert "free space, and run the command again" in done.stderr
        assert [each.name for each in log_dir.glob("orders*")] == ["orders-0.restoring"]
        filler.unlink()
        found = restore(rlmm, "orders-0", log_dir)
        assert found["resumed_segments"] >= 1
        assert log_of(log_dir / "orders-0") == log
