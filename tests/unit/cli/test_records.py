"""Test how `sediment fetch` reads batches that cannot be decoded: by name, and on to the next."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import cast
from uuid import UUID

import pytest
import zstandard
from kafka.record.util import encode_varint

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_manager import (
    DescribePage,
    FetchError,
    FetchPart,
    FetchRequest,
    Problem,
    ProblemKind,
    RecordSource,
)
from services.api.replicas import ReplicaService
from services.cli.output import print_tables, print_traceback
from services.common.inflate import Codec
from services.records.decode import MAX_RECORD_HEADERS
from tests.harness.sediment_command import Completed, sediment
from tests.harness.served import served_rlm
from tests.harness.synthetic_log import COMPRESSED, batch_of, bomb, honest_batch, record_of_headers

TP = TopicIdPartition(UUID(int=1), "clicks", 0)
MIB = 1024 * 1024
ODD_CODEC = 5
ODD_TEXT = "/logs/\x1b[2J\u202e\nforged: line\x9b"


class OneLog:
    """Answer every fetch with the same batches, which are the whole log."""

    def __init__(self) -> None:
        self.batches = b""
        self.end_offset = 0
        self.error = FetchError.NONE

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        end = self.end_offset
        if self.error is not FetchError.NONE:
            yield FetchPart(TP, self.error, ODD_TEXT, -1, -1, -1, (), None)
        for at in range(0, len(self.batches), MIB):
            part = self.batches[at : at + MIB]
            yield FetchPart(TP, FetchError.NONE, "", end, end, 0, (part,), RecordSource.REMOTE)

    def describe_partitions(
        self, topics: list[str], *, page_size: int, page_token: str
    ) -> DescribePage:
        problem = Problem(ProblemKind.UNREADABLE, ODD_TEXT, ODD_TEXT)
        return DescribePage((), "", (problem,))


@pytest.fixture(scope="module")
def rlm() -> Iterator[tuple[OneLog, str]]:
    log = OneLog()
    with served_rlm(cast(ReplicaService, log)) as (_, address):
        yield log, address


def fetched(rlm: tuple[OneLog, str], batches: bytes, end: int, *options: str) -> Completed:
    log, address = rlm
    log.batches, log.end_offset = batches, end
    name = f"{uuid_to_text(TP.topic_id)}:clicks-0"
    where = (f"--rlm={address}", f"--rlmm={address}")
    return sediment("fetch", name, "--offset=0", *where, *options)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_that_inflates_to_gibibytes_is_named_and_the_next_is_read(
    rlm: tuple[OneLog, str], codec: Codec
) -> None:
    log = batch_of(codec, bomb(codec), 0) + honest_batch(1, [b"after"], codec)
    done = fetched(rlm, log, 2, "-o", "json")
    assert done.returncode == 1
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ["after"]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"clicks-0: batch at offset 0 to 0 ({codec.name.lower()}, ")
    assert "inflates to more than the limit of 67108864 bytes" in line
    assert "raise --max-batch-size" in line


def test_a_record_of_millions_of_headers_is_named_and_the_next_batch_is_read(
    rlm: tuple[OneLog, str],
) -> None:
    inflated = record_of_headers(0) + record_of_headers(4 * MIB)
    data = zstandard.ZstdCompressor().compress(inflated)
    assert len(data) < MIB // 100
    log = batch_of(Codec.ZSTD, data, 0, records=2) + honest_batch(2, [b"after"])
    tracemalloc.start()
    try:
        done = fetched(rlm, log, 3, "-o", "json")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.returncode == 1
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == [None, "after"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("clicks-0: batch at offset 0 to 1 (zstd, ")
    assert "a record has 4194304 headers, more than the limit of 10000; read it" in line
    assert peak_bytes < 8 * len(inflated)


def test_a_record_may_have_headers_up_to_the_limit(rlm: tuple[OneLog, str]) -> None:
    for count, exit_code in ((MAX_RECORD_HEADERS, 0), (MAX_RECORD_HEADERS + 1, 1)):
        log = batch_of(Codec.NONE, record_of_headers(count), 0)
        done = fetched(rlm, log, 1, "-o", "json")
        assert done.returncode == exit_code, done.stderr
    log = batch_of(Codec.NONE, record_of_headers(MAX_RECORD_HEADERS), 0)
    (printed,) = fetched(rlm, log, 1, "-o", "json").stdout.splitlines()
    assert len(json.loads(printed)["headers"]) == MAX_RECORD_HEADERS


@pytest.mark.parametrize("length", [-1, 0, 3, 2**40])
def test_the_check_of_headers_ends_at_a_wrong_length(rlm: tuple[OneLog, str], length: int) -> None:
    record = encoded(length) + b"\0\0\0\1\1\0" + record_of_headers(3)
    done = fetched(rlm, batch_of(Codec.NONE, record, 0, records=2), 2)
    assert done.returncode == 1
    assert "cannot be decoded" in done.stderr


def encoded(number: int) -> bytes:
    """Return a number as a varint."""
    written = bytearray()
    encode_varint(number, written.append)
    return bytes(written)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_limit_can_be_changed(rlm: tuple[OneLog, str], codec: Codec) -> None:
    log = honest_batch(0, [bytes(100_000)], codec)
    assert fetched(rlm, log, 1, "--max-batch-size=90000").returncode == 1
    assert fetched(rlm, log, 1, "--max-batch-size=110000").returncode == 0


@pytest.mark.parametrize(
    ("codec_number", "data", "reason"),
    [
        (Codec.ZSTD, b"no zstd", "not valid zstd data"),
        (Codec.GZIP, b"", "a record is cut off"),
        (Codec.NONE, b"\x10\0\0\0", "a record is cut off"),
        (ODD_CODEC, b"", "unknown compression 5"),
    ],
)
def test_a_batch_that_cannot_be_decoded_is_named_and_the_next_is_read(
    rlm: tuple[OneLog, str], codec_number: int, data: bytes, reason: str
) -> None:
    done = fetched(rlm, batch_of(codec_number, data, 0) + honest_batch(1, [b"after"]), 2)
    assert done.returncode == 1
    assert "after" in done.stdout
    (line,) = done.stderr.splitlines()
    assert "batch at offset 0 to 0" in line
    assert reason in line


def test_a_damaged_batch_ends_the_command_in_one_line(rlm: tuple[OneLog, str]) -> None:
    log = bytearray(honest_batch(0, [b"value"]))
    log[-3] ^= 1
    done = fetched(rlm, bytes(log), 1)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "RLM sent a damaged batch: wrong CRC-32C (batch at offset 0" in line


def test_escapes_in_keys_and_values_are_shown_escaped(rlm: tuple[OneLog, str]) -> None:
    value = "\x1b]0;owned\x07\n99\t\u202eevil".encode()
    log = honest_batch(0, [value], key=b"\x1b[2J")
    (line,) = fetched(rlm, log, 1).stdout.splitlines()
    assert line.split("\t")[3:] == [r"\x1b[2J", r"\x1b]0;owned\x07\n99\t\u202eevil"]
    (document,) = fetched(rlm, log, 1, "-o", "json").stdout.splitlines()
    assert document.isprintable()
    assert json.loads(document)["value"] == value.decode()


def test_escapes_in_errors_are_shown_escaped(rlm: tuple[OneLog, str]) -> None:
    rlm[0].error = FetchError.CORRUPT_MESSAGE
    try:
        (line,) = fetched(rlm, b"", 0).stderr.splitlines()
    finally:
        rlm[0].error = FetchError.NONE
    assert line.isprintable()
    assert r"/logs/\x1b[2J\u202e\nforged: line\x9b" in line


def test_escapes_in_problems_are_shown_escaped(rlm: tuple[OneLog, str]) -> None:
    done = sediment("partitions", f"--rlm={rlm[1]}")
    _, line = done.stderr.splitlines()
    assert line.isprintable()
    assert r"UNREADABLE: /logs/\x1b[2J\u202e\nforged: line\x9b" in line


def test_escapes_in_tables_and_tracebacks_are_shown_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_tables((ODD_TEXT, ["name"], [[ODD_TEXT]]))
    try:
        raise ValueError(ODD_TEXT)
    except ValueError as e:
        print_traceback(ValueError, e, e.__traceback__)
    shown = capsys.readouterr()
    assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())
    assert shown.out.count(r"\x1b[2J\u202e\nforged: line\x9b") == 2
