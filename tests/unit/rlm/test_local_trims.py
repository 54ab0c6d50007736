"""Test how far a broker's log may be trimmed: only records go that are in the tier and old."""

from dataclasses import replace

import pytest

from services.api.topic_config import AS_RETENTION, UNLIMITED, TopicConfig
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.retention.local_trims import LocalRetention, trim_offset
from services.rlm.tier import Tier
from tests.unit.rlm.test_candidates import lineage

NOW_MS = 1_800_000_000_000
AT_ONCE = LocalRetention(0, UNLIMITED)


def log(*bases: int, end: int, **fields: object) -> LocalLog:
    """Return segments of 100 bytes at `bases`, the last one active, which all replicas have."""
    nexts: list[int | None] = [*bases[1:], None]
    segments = tuple(
        LocalSegment(None, base, 100, following)  # type: ignore[arg-type]  # no file is read
        for base, following in zip(bases, nexts, strict=True)
    )
    made = LocalLog(segments, lineage((0, 0)), None, bases[0], end, end, high_watermark=end)
    return replace(made, **fields)  # type: ignore[arg-type]


def tier(*ranges: tuple[int, int, int], log_start: int = 0) -> Tier:
    """Return what is finished, each as epoch, first and last offset."""
    found = Tier(known=True, log_start_offset=log_start)
    for epoch, first, last in ranges:
        found.ranges[epoch].add(first, last)
        found.ranges_without_tails[epoch].add(first, last)
    return found


def trimmed(
    of: LocalLog,
    in_tier: Tier,
    retention: LocalRetention = AT_ONCE,
    ages_ms: dict[int, int | None] | None = None,
) -> int:
    def timestamp(segment: LocalSegment) -> int | None:
        age_ms = (ages_ms or {}).get(segment.base_offset, 1_000)
        return None if age_ms is None else NOW_MS - age_ms

    return trim_offset(of, in_tier, retention, NOW_MS, timestamp)


def test_rolled_segments_in_the_tier_go_and_the_active_one_stays() -> None:
    assert trimmed(log(0, 10, 20, end=25), tier((0, 0, 24))) == 20


@pytest.mark.parametrize(
    ("in_tier", "expected"),
    [
        (tier(), 0),
        (tier((0, 0, 8)), 0),
        (tier((0, 0, 9)), 10),
        (tier((0, 1, 19)), 0),
        (tier((0, 10, 19)), 0),
        (tier((0, 0, 9), (0, 11, 19)), 10),
        (Tier(), 0),
    ],
    ids=["nothing", "not all", "the first", "not its begin", "not the first", "a gap", "unread"],
)
def test_only_segments_whose_every_offset_is_in_the_tier_go(in_tier: Tier, expected: int) -> None:
    assert trimmed(log(0, 10, 20, end=25), in_tier) == expected


def test_a_copy_of_another_leader_covers_nothing() -> None:
    """After an unclean election offsets 5 to 9 are the new leader's; the tier has the old ones."""
    of = log(0, 10, 20, end=25, lineage=lineage((0, 0), (2, 5)))
    assert trimmed(of, tier((0, 0, 19))) == 0
    assert trimmed(of, tier((0, 0, 4), (2, 5, 19))) == 20
    assert trimmed(of, tier((0, 0, 4), (1, 5, 19))) == 0


@pytest.mark.parametrize(("high_watermark", "expected"), [(9, 0), (10, 10), (19, 10), (25, 20)])
def test_nothing_goes_that_not_all_replicas_have(high_watermark: int, expected: int) -> None:
    of = log(0, 10, 20, end=25, high_watermark=high_watermark)
    assert trimmed(of, tier((0, 0, 24))) == expected


@pytest.mark.parametrize(
    ("ages_ms", "expected"), [({0: 101}, 10), ({0: 100}, 0), ({0: None}, 0), ({0: -5}, 0)]
)
def test_by_time_a_segment_goes_when_its_newest_record_is_older(
    ages_ms: dict[int, int | None], expected: int
) -> None:
    ages_ms = {10: 1, **ages_ms}
    of = log(0, 10, 20, end=25)
    assert trimmed(of, tier((0, 0, 24)), LocalRetention(100, UNLIMITED), ages_ms) == expected


@pytest.mark.parametrize(("size_bytes", "expected"), [(300, 0), (201, 0), (200, 10), (0, 20)])
def test_by_size_as_much_goes_as_leaves_enough(size_bytes: int, expected: int) -> None:
    limit = LocalRetention(UNLIMITED, size_bytes)
    assert trimmed(log(0, 10, 20, end=25), tier((0, 0, 24)), limit) == expected


def test_files_that_the_broker_has_yet_to_delete_count_as_gone() -> None:
    of = log(0, 10, 20, 30, end=35, log_start_offset=10)
    limit = LocalRetention(UNLIMITED, 200)
    assert trimmed(of, tier((0, 0, 34)), replace(limit, size_bytes=300)) == 10
    assert trimmed(of, tier((0, 0, 34)), limit) == 20


def test_a_tail_lets_nothing_go() -> None:
    found = tier((0, 0, 9))
    found.ranges[0].add(10, 19)
    assert trimmed(log(0, 10, 20, end=25), found) == 10


def test_without_limits_nothing_goes() -> None:
    assert trimmed(log(0, 10, 20, end=25), tier((0, 0, 24)), LocalRetention(-1, -1)) == 0


def test_what_was_deleted_from_the_tier_need_not_stay() -> None:
    of = log(0, 10, 20, 30, end=35)
    assert trimmed(of, tier((0, 20, 29), log_start=20)) == 30


@pytest.mark.parametrize(
    "in_tier",
    [
        tier(log_start=20),
        tier((7, 20, 29), log_start=20),
        tier(log_start=40),
        tier((0, 40, 49), log_start=40),
    ],
    ids=["nothing there", "of another leader", "beyond this log", "there, and beyond this log"],
)
def test_it_stays_if_the_tier_begins_with_another_record(in_tier: Tier) -> None:
    assert trimmed(log(0, 10, 20, 30, end=35), in_tier) == 0


@pytest.mark.parametrize(
    ("own", "total", "default", "expected"),
    [
        (AS_RETENTION, 50, AS_RETENTION, 50),
        (AS_RETENTION, UNLIMITED, AS_RETENTION, UNLIMITED),
        (AS_RETENTION, 50, 20, 20),
        (AS_RETENTION, 50, 90, 50),
        (AS_RETENTION, 50, UNLIMITED, 50),
        (30, 50, 20, 30),
        (UNLIMITED, UNLIMITED, 20, UNLIMITED),
    ],
)
def test_a_topic_without_a_local_retention_has_the_default(
    own: int, total: int, default: int, expected: int
) -> None:
    config = TopicConfig(
        retention_ms=total,
        retention_bytes=total,
        local_retention_ms=own,
        local_retention_bytes=own,
    )
    assert LocalRetention(default, default).of(config) == LocalRetention(expected, expected)


def test_a_trim_ends_where_a_segment_does_wherever_those_of_the_tier_end() -> None:
    assert trimmed(log(0, 10, 20, end=25), tier((0, 0, 13))) == 10
