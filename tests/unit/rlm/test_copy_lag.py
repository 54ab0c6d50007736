"""Test how long a rolled segment waits for its copy: KIP-1241's rules."""

import os
from pathlib import Path
from struct import pack
from typing import Any
from uuid import UUID

import pytest

from services.api.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.topic_config import StoredTopicConfig, TopicConfig, topic_config
from services.rlm.copy.rules import (
    CopyLag,
    CopyLagDefaults,
    CopyRules,
    effective_copy_lag,
    eligible_log_segments,
)
from services.rlm.kafka_log.indexes import largest_timestamp_ms
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.topic_configs import TopicConfigs
from tests.unit.rlm.kafka_bytes import NAME

NOW_MS = 1_800_000_000_000
YEAR_MS = 365 * 24 * 3_600_000
DEFAULTS = CopyLagDefaults()


def log(*sizes: int) -> list[LocalSegment]:
    """Return segments of ten offsets each, the last one active."""
    last = len(sizes) - 1
    return [
        LocalSegment(Path("t-0"), 10 * n, size, None if n == last else 10 * (n + 1))
        for n, size in enumerate(sizes)
    ]


def eligible(
    segments: list[LocalSegment],
    lag: CopyLag,
    ages_ms: dict[int, int | None] | None = None,
    now_ms: int = NOW_MS,
) -> list[int]:
    """Return base offsets; a segment without a given age is as old as possible."""

    def timestamp(segment: LocalSegment) -> int | None:
        age_ms = (ages_ms or {}).get(segment.base_offset, NOW_MS)
        return None if age_ms is None else NOW_MS - age_ms

    found = eligible_log_segments(segments[:-1], segments, lag, now_ms, timestamp)
    return [segment.base_offset for segment in found]


def lag_of(
    ms: int | None, size_bytes: int | None, local_ms: int = -2, local_bytes: int = -2
) -> CopyLag:
    config = TopicConfig(
        retention_ms=1000,
        retention_bytes=5000,
        local_retention_ms=local_ms,
        local_retention_bytes=local_bytes,
        remote_copy_lag_ms=ms,
        remote_copy_lag_bytes=size_bytes,
    )
    return effective_copy_lag(config, DEFAULTS)


@pytest.mark.parametrize(("lag_bytes", "expected"), [(60, []), (50, [0]), (20, [0, 10]), (91, [])])
def test_by_size_a_segment_is_due_when_so_much_lies_behind_it(
    lag_bytes: int, expected: list[int]
) -> None:
    assert eligible(log(40, 30, 20), CopyLag(None, lag_bytes)) == expected


@pytest.mark.parametrize(
    ("age_ms", "expected"), [(99, []), (100, [0]), (101, [0]), (-1, [0]), (0, []), (None, [0])]
)
def test_by_time_a_segment_is_due_when_its_newest_record_is_old_or_of_the_future_or_unreadable(
    age_ms: int | None, expected: list[int]
) -> None:
    assert eligible(log(40, 20), CopyLag(100, None), {0: age_ms}) == expected


def test_either_of_the_two_is_enough() -> None:
    young: dict[int, int | None] = {0: 1, 10: 1}
    assert eligible(log(40, 30, 20), CopyLag(100, 50), young) == [0]
    assert eligible(log(40, 30, 20), CopyLag(100, 60), {0: 100, 10: 99}) == [0]


def test_the_first_segment_that_is_not_due_ends_the_search() -> None:
    assert eligible(log(40, 30, 30, 20), CopyLag(100, None), {0: 500, 10: 1, 20: 500}) == [0]


@pytest.mark.parametrize("lag", [CopyLag(0, None), CopyLag(None, 0), CopyLag(0, 99), CopyLag(9, 0)])
def test_a_lag_of_zero_is_none_and_no_timestamp_is_asked_for(lag: CopyLag) -> None:
    def must_not_be_asked(segment: LocalSegment) -> int | None:
        raise AssertionError(segment)

    segments = log(40, 30, 20)
    found = eligible_log_segments(segments[:-1], segments, lag, NOW_MS, must_not_be_asked)
    assert found == segments[:-1]


def test_no_timestamp_is_read_if_the_size_decides() -> None:
    asked: list[int] = []

    def timestamp(segment: LocalSegment) -> int:
        asked.append(segment.base_offset)
        return NOW_MS

    segments = log(40, 30, 30, 20)
    found = eligible_log_segments(segments[:-1], segments, CopyLag(100, 80), NOW_MS, timestamp)
    assert ([segment.base_offset for segment in found], asked) == ([0], [10])


@pytest.mark.parametrize("wrong_ms", [-YEAR_MS, YEAR_MS])
def test_a_clock_a_year_wrong_hastens_or_delays_and_changes_no_order(wrong_ms: int) -> None:
    """A clock behind makes every record one of the future, a clock ahead makes each an old one."""
    ages: dict[int, int | None] = {0: 50, 10: 20, 20: 10}
    found = eligible(log(1, 1, 1, 1), CopyLag(100, None), ages, NOW_MS + wrong_ms)
    assert found == [0, 10, 20]


@pytest.mark.parametrize(
    ("ms", "size_bytes", "local_ms", "local_bytes", "expected"),
    [
        (None, None, -2, -2, CopyLag(0, 5000)),
        (7, 8, -2, -2, CopyLag(7, 8)),
        (-1, -1, -2, -2, CopyLag(1000, 5000)),
        (-1, -1, 10, 20, CopyLag(10, 20)),
        (-1, -1, -1, -1, CopyLag(None, None)),
        (-1, 8, -1, -1, CopyLag(None, 8)),
        (7, -1, -1, -1, CopyLag(7, None)),
        (0, 0, -1, -1, CopyLag(0, 0)),
    ],
)
def test_a_lag_of_minus_one_is_the_effective_local_retention(
    ms: int | None, size_bytes: int | None, local_ms: int, local_bytes: int, expected: CopyLag
) -> None:
    assert lag_of(ms, size_bytes, local_ms, local_bytes) == expected


def test_default_copy_lag_is_capped_by_the_local_retention() -> None:
    defaults = CopyLagDefaults(ms=500, size_bytes=600)
    unlimited = topic_config({})
    assert effective_copy_lag(unlimited, defaults) == CopyLag(500, 600)
    short = topic_config({"local.retention.ms": "100", "local.retention.bytes": "200"})
    assert effective_copy_lag(short, defaults) == CopyLag(100, 200)
    said = topic_config({"remote.copy.lag.ms": "0"})
    assert effective_copy_lag(said, defaults) == CopyLag(0, 600)


@pytest.fixture
def segment(tmp_path: Path) -> LocalSegment:
    made = LocalSegment(tmp_path, 0, 1, 10)
    made.log_path.write_bytes(b"x")
    os.utime(made.log_path, (77, 77))
    return made


@pytest.mark.parametrize(
    ("index", "expected_ms"),
    [
        (pack(">qiqi", 1000, 3, 2000, 9), 2000),
        (None, 77_000),
        (b"", 77_000),
        (b"x" * 11, 77_000),
        (pack(">qi", 2000, 9) + b"x", 77_000),
        (pack(">qi", 2000, 9) + bytes(12), 77_000),
        (pack(">qi", -1, 9), 77_000),
    ],
)
def test_a_segments_time_is_the_last_of_its_time_index_or_when_it_was_written(
    segment: LocalSegment, index: bytes | None, expected_ms: int
) -> None:
    if index is not None:
        segment.file(".timeindex").write_bytes(index)
    assert largest_timestamp_ms(segment) == expected_ms


def test_of_a_segment_that_went_there_is_no_time(segment: LocalSegment) -> None:
    segment.log_path.unlink()
    assert largest_timestamp_ms(segment) is None


class Settings:
    """The part of an RLMM that these tests call."""

    def __init__(self, *entries: tuple[str, str], error: Exception | None = None) -> None:
        self._entries = dict(entries)
        self._error = error

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        if self._error is not None:
            raise self._error
        return StoredTopicConfig(topic_id, "t", self._entries)


def rules(settings: Any, **given: Any) -> CopyRules:
    return CopyRules(TopicConfigs(settings, 30.0), **given)


@pytest.mark.parametrize(
    ("entries", "by_default", "expected"),
    [
        ((), True, True),
        ((), False, False),
        ((("remote.storage.enable", "true"),), False, True),
        ((("remote.storage.enable", "false"),), True, False),
        ((("remote.log.copy.disable", "true"),), True, False),
        ((("remote.storage.enable", "true"), ("remote.log.copy.disable", "true")), True, False),
    ],
)
def test_a_topic_is_copied_as_its_settings_say(
    entries: tuple[tuple[str, str], ...], by_default: bool, expected: bool
) -> None:
    made = rules(Settings(*entries), tiered_topics=("*",) if by_default else ())
    assert made.of(NAME).copies is expected


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("*",), True),
        (("t",), True),
        (("T",), False),
        (("*", "!t"), False),
        (("!other*", "t*"), True),
        (("!t",), False),
        (("payments*",), False),
    ],
)
def test_a_topic_without_settings_is_copied_as_the_patterns_say(
    patterns: tuple[str, ...], expected: bool
) -> None:
    assert rules(Settings(), tiered_topics=patterns).of(NAME).copies is expected
    off = Settings(("remote.storage.enable", "false"))
    assert not rules(off, tiered_topics=patterns).of(NAME).copies
    on = Settings(("remote.storage.enable", "true"))
    assert rules(on, tiered_topics=patterns).of(NAME).copies


@pytest.mark.parametrize(
    "topic",
    ["__consumer_offsets", "__transaction_state", "__remote_log_metadata", "__cluster_metadata"],
)
def test_internal_topic_is_never_copied_despite_settings(topic: str) -> None:
    made = rules(Settings(("remote.storage.enable", "true")))
    assert made.of(NAME).copies
    assert not made.of(TopicIdPartition(NAME.topic_id, topic, 0)).copies


def test_topic_unknown_to_rlmm_has_default_settings() -> None:
    unknown = Settings(error=RemoteResourceNotFoundError("no such topic"))
    assert rules(unknown).of(NAME).copies
    assert rules(unknown).of(NAME).lag.is_none


def test_rules_fail_while_settings_cannot_be_read() -> None:
    away = Settings(error=RetriableRemoteStorageError("away"))
    with pytest.raises(RetriableRemoteStorageError):
        rules(away).of(NAME)


def test_a_copy_on_request_waits_for_no_lag() -> None:
    settings = Settings(("remote.copy.lag.ms", "500"))
    assert rules(settings).of(NAME).lag == CopyLag(500, None)
    assert rules(settings, lag_defaults=None).of(NAME).lag.is_none


def test_how_long_the_broker_keeps_a_segment_is_known_only_if_it_is_set() -> None:
    whole = ("retention.ms", "1000")
    assert rules(Settings(whole)).of(NAME).local_retention_ms is None
    said = Settings(whole, ("local.retention.ms", "400"))
    assert rules(said).of(NAME).local_retention_ms == 400
