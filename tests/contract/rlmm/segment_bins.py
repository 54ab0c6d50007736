"""Test the segments of a partition joined into few bins."""

import pytest

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.segment_batches import (
    MAX_HOLES,
    BinnedSegments,
    BinQuery,
    OffsetRange,
    SegmentAxis,
    SegmentBin,
)
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    STARTED,
    RlmmContractPart,
    id_of,
)

TIME = SegmentAxis.TIME


def starts(found: BinnedSegments) -> list[int]:
    return [each.start_offset for each in found.bins]


class Bins(RlmmContractPart):
    def test_few_segments_are_a_bin_each(self) -> None:
        first = self.finished(0, 9, {1: 0, 3: 5}, max_timestamp_ms=2_000, segment_size_in_bytes=7)
        self.add(self.segment(10, 19, {3: 10}))
        deleting = self.finished(20, 29, {3: 20})
        self.move(deleting, DELETE_STARTED)
        gone = self.finished(30, 39, {3: 30})
        self.move(gone, DELETE_STARTED, DELETE_FINISHED)
        found = self.rlmm.bin_remote_log_segments(BinQuery(self.tp))
        assert found.revision == self.revision()
        assert (found.value.segments, found.value.segments_in_range) == (3, 3)
        assert (found.value.first, found.value.last) == (0, 29)
        assert found.value.bins[0] == SegmentBin(
            state=FINISHED,
            segments=1,
            first=0,
            last=9,
            start_offset=0,
            end_offset=9,
            max_timestamp_ms=2_000,
            size_bytes=7,
            lowest_leader_epoch=1,
            highest_leader_epoch=3,
            segment_id=id_of(first),
        )
        assert [each.state for each in found.value.bins] == [FINISHED, STARTED, DELETE_STARTED]

    def test_many_segments_are_joined_into_few_bins(self) -> None:
        for start in range(0, 100, 10):
            self.finished(start, start + 9, {start // 80: start}, segment_size_in_bytes=1 << 30)
        copied = self.add(self.segment(110, 119, {1: 110}))
        found = self.rlmm.bin_remote_log_segments(BinQuery(self.tp, bins=3)).value
        assert found.segments_in_range == 11
        assert [
            (each.start_offset, each.end_offset, each.segments, each.size_bytes >> 30)
            for each in found.bins
        ] == [(0, 39, 4, 4), (40, 79, 4, 4), (80, 99, 2, 2), (110, 119, 1, 0)]
        last, single = found.bins[2:]
        assert (last.lowest_leader_epoch, last.highest_leader_epoch) == (1, 1)
        assert (last.segment_id, single.segment_id) == (None, id_of(copied))
        part = self.rlmm.bin_remote_log_segments(BinQuery(self.tp, first=35, last=74, bins=2)).value
        # A segment that begins before the range counts for the first bin.
        assert [(each.first, each.last, each.segments) for each in part.bins] == [
            (30, 59, 3),
            (60, 79, 2),
        ]
        assert (part.segments, part.segments_in_range) == (11, 5)

    def test_only_segments_of_the_range_are_binned(self) -> None:
        for start in (0, 10, 20, 30):
            self.finished(start, start + 9)
        assert starts(
            self.rlmm.bin_remote_log_segments(BinQuery(self.tp, first=19, last=20)).value
        ) == [
            10,
            20,
        ]
        beyond = self.rlmm.bin_remote_log_segments(BinQuery(self.tp, first=40)).value
        assert (beyond.bins, beyond.segments, beyond.last) == ((), 4, 39)

    def test_time_begins_at_the_segment_before_and_never_runs_back(self) -> None:
        for start, at_ms in ((0, 1_000), (10, 2_000), (20, 1_500), (30, -1), (40, 4_000)):
            self.finished(start, start + 9, max_timestamp_ms=at_ms)
        found = self.rlmm.bin_remote_log_segments(BinQuery(self.tp, TIME)).value
        assert [(each.first, each.last) for each in found.bins] == [
            (1_000, 1_000),
            (1_000, 2_000),
            (2_000, 2_000),
            (2_000, 2_000),
            (2_000, 4_000),
        ]
        assert [each.max_timestamp_ms for each in found.bins] == [1_000, 2_000, 1_500, -1, 4_000]
        assert (found.first, found.last, found.holes) == (1_000, 4_000, ())
        later = self.rlmm.bin_remote_log_segments(
            BinQuery(self.tp, TIME, first=2_001, bins=1)
        ).value
        assert starts(later) == [40]

    def test_holes_lie_between_finished_segments(self) -> None:
        self.finished(5, 100)
        self.finished(20, 29)
        self.add(self.segment(105, 119))
        self.finished(110, 119)
        self.finished(150, 159)
        holes = (OffsetRange(101, 109), OffsetRange(120, 149))
        assert self.rlmm.bin_remote_log_segments(BinQuery(self.tp)).value.holes == holes
        # Seen from its last offset, and from beside it.
        at_end = self.rlmm.bin_remote_log_segments(BinQuery(self.tp, first=109, last=119)).value
        assert at_end.holes == holes[:1]
        beside = self.rlmm.bin_remote_log_segments(BinQuery(self.tp, first=110, last=119)).value
        assert beside.holes == ()

    def test_of_too_many_holes_the_longest_are_shown(self) -> None:
        self.finished(0, 0)
        self.finished(2, 2)  # The first hole is the shortest one.
        for number in range(1, MAX_HOLES + 1):
            self.finished(3 * number + 2, 3 * number + 2)
        holes = self.rlmm.bin_remote_log_segments(BinQuery(self.tp)).value.holes
        assert holes == tuple(OffsetRange(3 * n, 3 * n + 1) for n in range(1, MAX_HOLES + 1))

    def test_the_largest_offsets_and_times_are_binned(self) -> None:
        most = 2**63 - 1
        self.finished(0, 9, max_timestamp_ms=-1)
        self.finished(most - 1, most, max_timestamp_ms=most)
        for axis in SegmentAxis:
            for query in (
                BinQuery(self.tp, axis, bins=1),
                BinQuery(self.tp, axis, 0, most, bins=1),
            ):
                found = self.rlmm.bin_remote_log_segments(query).value
                assert sum(each.segments for each in found.bins) == found.segments_in_range
        assert self.rlmm.bin_remote_log_segments(BinQuery(self.tp)).value.holes == (
            OffsetRange(10, most - 2),
        )

    def test_a_partition_without_segments_has_no_bins(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.bin_remote_log_segments(BinQuery(self.tp))
        self.put_deletion(MARKED)
        for axis in SegmentAxis:
            found = self.rlmm.bin_remote_log_segments(BinQuery(self.tp, axis)).value
            assert found == BinnedSegments(0, None, None, 0, ())

    def test_a_query_that_is_not_sound_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="bins: must be 1 to 2000, is 2001"):
            BinQuery(self.tp, bins=2_001)
        with pytest.raises(InvalidRequestError, match="first: must not be above last: 9 > 1"):
            BinQuery(self.tp, first=9, last=1)
