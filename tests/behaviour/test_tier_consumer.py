"""Test the consumer of services.client, and the example in docs/use/clients.md."""

import base64
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError, ThrottledError
from services.api.ids import uuid_to_text
from services.api.remote_log_manager import FetchPart, FetchRequest
from services.client import (
    PLAINTEXT,
    AtTime,
    IsolationLevel,
    ReadFailedError,
    RecordKind,
    RecordSource,
    SpecialTime,
    TierConsumer,
)
from services.client.records import ReadOptions, decoded
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.servicer import RemoteLogManagerServicer
from tests.harness.minio import GRPCURL
from tests.harness.sediment_command import sediment
from tests.harness.served import served, served_rlm
from tests.harness.ship_stack import Stack
from tests.harness.synthetic_log import honest_batch
from tests.harness.troubles import SilentRlmm
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import ABORT, COMMIT, NAME, PartitionFiles, in_transaction, marker
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc

CLIENTS = Path(__file__).parents[2] / "docs" / "clients"
CLIENTS_PAGE = CLIENTS.parent / "use" / "clients.md"
_BATCHES = r'"record_batches": "([^"]+)"'


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    """Offsets 0 and 1 rolled, 2 and 3 active."""
    files = PartitionFiles(log_dir)
    files.segment(0, [honest_batch(0, [b"zero"], key=b"k"), honest_batch(1, [b"one"])])
    files.snapshot(2)
    files.segment(2, [honest_batch(2, [b"two", b"three"])])
    return files


@pytest.fixture
def address(stack: Stack, files: PartitionFiles) -> Iterator[str]:
    stack.ship()
    servicer = RemoteLogManagerServicer(stack.rlm())

    def add_to(server: grpc.Server) -> None:
        pb_grpc.add_RemoteLogManagerServicer_to_server(servicer, server)

    for file in files.path.glob(f"{0:020}.*"):
        file.unlink()
    with served(add_to, "tieredstorage.v1.RemoteLogManager") as (_, found):
        yield found


class ThrottledOnce(Wrapper[BrokerRemoteLogManager]):
    """The real RLM, which throttles the first fetch."""

    def __init__(self, rlm: BrokerRemoteLogManager) -> None:
        super().__init__(rlm)
        self.fetches = 0

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        self.fetches += 1
        if self.fetches == 1:
            raise ThrottledError("busy")
        return self.real.fetch(request)


@pytest.fixture
def consumer(address: str) -> Iterator[TierConsumer]:
    with TierConsumer(address) as made:
        yield made


def test_records_come_from_the_tier_and_then_from_the_disk(consumer: TierConsumer) -> None:
    read = [(r.offset, r.key, r.value, r.source) for r in consumer.records("t", 0)]
    assert read == [
        (0, b"k", b"zero", RecordSource.REMOTE),
        (1, b"k", b"one", RecordSource.REMOTE),
        (2, b"k", b"two", RecordSource.LOCAL),
        (3, b"k", b"three", RecordSource.LOCAL),
    ]


def test_another_machine_is_called_in_plaintext_by_choice_only(address: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"rlm\.example:9093 is another machine"):
        TierConsumer(f"{address},rlm.example:9093")
    with TierConsumer("rlm.example:9093", PLAINTEXT), TierConsumer(address) as made:
        assert made.partitions("t")


def test_places_to_start(consumer: TierConsumer) -> None:
    def first(start: int | SpecialTime | AtTime) -> int | None:
        return next((r.offset for r in consumer.records("t", 0, start)), None)

    assert [first(3), first(SpecialTime.EARLIEST_LOCAL), first(AtTime(0))] == [3, 2, 0]
    assert [first(SpecialTime.LATEST), first(AtTime(2**50))] == [None, None]
    with pytest.raises(ReadFailedError, match="t-0 at offset 9: OFFSET_OUT_OF_RANGE"):
        first(9)
    with pytest.raises(RemoteResourceNotFoundError, match="partition t-5 is unknown to RLM"):
        consumer.records("t", 5)


def test_a_follower_gets_what_is_written_later(
    consumer: TierConsumer, files: PartitionFiles
) -> None:
    with ThreadPoolExecutor() as pool:
        followed = consumer.records("t", 0, 3, follow=True)
        assert next(followed).value == b"three"
        waiting = pool.submit(next, followed)
        with files.file(2, ".log").open("ab") as log:
            log.write(honest_batch(4, [b"four"]))
        assert waiting.result().value == b"four"


def test_a_follower_is_told_which_of_its_records_an_unclean_election_overruled(
    stack: Stack, files: PartitionFiles
) -> None:
    """It would never get the new leader's records below its offset."""
    followed = decoded(stack.rlm(), NAME, 0, ReadOptions(follow=True))
    assert [next(followed).value for _ in range(4)] == [b"zero", b"one", b"two", b"three"]
    files.segment(2, [honest_batch(2, [b"other", b"records", b"of", b"it"])])
    files.epochs((0, 0), (1, 2))
    with pytest.raises(ReadFailedError, match="overruled the records from offset 2 on"):
        next(followed)


def test_a_follower_retries_a_throttled_fetch(stack: Stack, files: PartitionFiles) -> None:
    assert files.path.exists()
    busy: Any = ThrottledOnce(stack.rlm())
    assert next(decoded(busy, NAME, 0, ReadOptions(follow=True))).value == b"zero"
    assert busy.fetches == 2
    busy.fetches = 0
    with pytest.raises(ThrottledError):
        next(decoded(busy, NAME, 0))


def read_from_the_tier(stack: Stack, files: PartitionFiles) -> tuple[Any, BrokerRemoteLogManager]:
    """Return an RLM of a log whose first segment is in the tier only, and its RLMM."""
    stack.ship()
    for file in files.path.glob(f"{0:020}.*"):
        file.unlink()
    rlmm: Any = SilentRlmm(stack.rlmm)
    limits = RlmLimits(read=ReadLimits(recent_s=0.0))
    return rlmm, stack.rlm(rlmm=rlmm, limits=limits)


def test_records_that_are_read_while_rlmm_is_away_are_marked(
    stack: Stack, files: PartitionFiles
) -> None:
    rlmm, rlm = read_from_the_tier(stack, files)
    first = next(decoded(rlm, NAME, 0))
    assert (first.value, first.metadata_age_ms) == (b"zero", None)
    rlmm.is_silent = True
    marked = next(decoded(rlm, NAME, 0))
    assert marked.value == b"zero"
    assert marked.metadata_age_ms is not None
    local = next(decoded(rlm, NAME, 2))
    assert (local.value, local.metadata_age_ms) == (b"two", None)


def test_fetch_says_once_that_rlmm_is_away(stack: Stack, files: PartitionFiles) -> None:
    rlmm, rlm = read_from_the_tier(stack, files)
    assert next(decoded(rlm, NAME, 0)).value == b"zero"
    rlmm.is_silent = True
    name = f"{uuid_to_text(NAME.topic_id)}:{NAME.topic}-{NAME.partition}"
    with served_rlm(rlm) as (_, address):
        done = sediment(
            "fetch", name, "--offset=0", "-f", "%s ", f"--rlm={address}", f"--rlmm={address}"
        )
    assert (done.returncode, done.stdout) == (0, "zero one two three ")
    assert done.stderr.count("RLMM cannot be reached: RLM read this with what it knew") == 1


def test_records_of_transactions_are_named(consumer: TierConsumer, files: PartitionFiles) -> None:
    with files.file(2, ".log").open("ab") as log:
        log.write(marker(4, 9, COMMIT) + in_transaction(5, 8) + marker(6, 8, ABORT))
    files.file(2, ".txnindex").write_bytes(b"")
    found = consumer.records("t", 0, 3, with_transactions=True)
    kinds = [(r.offset, r.kind) for r in islice(found, 2)]
    assert kinds == [(3, RecordKind.DATA), (4, RecordKind.COMMIT)]
    committed = consumer.records("t", 0, 3, isolation=IsolationLevel.READ_COMMITTED)
    assert next(committed).offset == 3


def test_the_example_reads_and_is_on_the_page(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["read.py", address, "t", "0"])
    runpy.run_path(str(CLIENTS / "read.py"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["0", "1", "2", "3"]
    _, program = (CLIENTS / "read.py").read_text().split("\n\n", 1)
    assert f"```python\n{program}```" in CLIENTS_PAGE.read_text()


@pytest.mark.deep
def test_the_example_of_grpcurl_reads_the_tier(address: str) -> None:
    """Build grpcurl once, and run the page's command with this partition and address."""
    page = CLIENTS_PAGE.read_text()
    found = re.search(r"^grpcurl (.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    command = found[1].replace("\\\n", " ")
    for shown, ours in (
        ("XmzBHi9LT3qcCl09an8bIg", uuid_to_text(NAME.topic_id)),
        ('"payments"', f'"{NAME.topic}"'),
        ("rlm.example:50053", address),
    ):
        assert shown in command
        command = command.replace(shown, ours)
    argv = [str(GRPCURL.ensure()), *shlex.split(command)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    batches = [base64.b64decode(each) for each in re.findall(_BATCHES, done.stdout)]
    assert int.from_bytes(batches[0][:8], "big") == 0  # the base offset
    assert b"zero" in batches[0]


@pytest.mark.deep
def test_the_example_of_node_reads_each_batch_of_the_tier_and_the_disk(
    address: str, tmp_path: Path
) -> None:
    """Install the example's packages by its lock in a copy of the tree's shape, and run it."""
    root = Path(__file__).parents[2]
    for folder in ("protos", "third_party"):
        (tmp_path / folder).symlink_to(root / folder)
    example = tmp_path / "docs" / "clients" / "node"
    names = ("read.mjs", "package.json", "package-lock.json")
    example.mkdir(parents=True)
    for name in names:
        shutil.copy(CLIENTS / "node" / name, example)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=example, check=True, timeout=300)
    done = subprocess.run(
        ["node", "read.mjs", address, NAME.topic, str(NAME.partition)],
        cwd=example,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 0 1", "1 1 1", "2 3 2"]
