"""Test `sediment holds`: times that become offsets once, and how a legal hold is ended."""

import pytest

from services.api.errors import DeletionRefusedError
from services.api.remote_log_metadata_manager import all_holds
from tests.contract.rlmm.segments import DELETE_STARTED, finished, move
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.tier import a_topic

rlmm = served_fixtures.rlmm

SET = ("holds", "set", "orders", "--name", "bug", "--reason", "the bug")


def kept(rlmm: RlmmProcess) -> dict[int | None, tuple[int, int | None]]:
    """Return the offsets of each hold by its partition."""
    holds = all_holds(rlmm.client)
    return {each.partition: (each.first_offset, each.last_offset) for each in holds}


def test_times_become_the_offsets_of_whole_segments_once(rlmm: RlmmProcess) -> None:
    one, other = a_topic("orders", 2)
    before, within, _ = (
        finished(rlmm.client, one, start, start + 9, max_timestamp_ms=at)
        for start, at in ((0, 1_000), (10, 2_000), (20, 3_000))
    )
    for start, at in ((0, 500), (5, 5_000)):
        finished(rlmm.client, other, start, start + 4, max_timestamp_ms=at)
    times = ("--from-time", "1970-01-01T00:00:01.500Z", "--to-time", 2_000)
    answers = rlmm.answers(*SET, *times)
    assert [(each["partition"], each["name"]) for each in answers] == [(0, "bug"), (1, "bug")]
    assert kept(rlmm) == {0: (10, 29), 1: (5, 9)}
    assert move(rlmm.client, before, DELETE_STARTED).applied
    with pytest.raises(DeletionRefusedError, match=r"hold bug .* keeps offsets 10-29"):
        move(rlmm.client, within, DELETE_STARTED)

    finished(rlmm.client, one, 30, 39, max_timestamp_ms=1_800)
    assert kept(rlmm)[0] == (10, 29)
    rlmm.answers(*SET, *times)
    assert kept(rlmm)[0] == (10, None)


def test_an_offset_and_a_time_bound_one_hold(rlmm: RlmmProcess) -> None:
    [tp] = a_topic("orders")
    for start, at in ((0, 1_000), (10, 2_000), (20, 3_000)):
        finished(rlmm.client, tp, start, start + 9, max_timestamp_ms=at)
    rlmm.answers(*SET, "--from", 5, "--to-time", 1_000)
    assert kept(rlmm) == {0: (5, 19)}
    rlmm.answers(*SET, "--from-time", 2_500, "--to", 24)
    assert kept(rlmm) == {0: (20, 24)}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("orders", "--from", "1", "--from-time", "1"), "give an offset or a time, not both"),
        (("orders", "--to", "1", "--to-time", "1"), "give an offset or a time, not both"),
        (("orders", "--from-time", "2", "--to-time", "1"), "--to-time is before --from-time"),
        (("--all", "--from-time", "1"), "name a topic or a partition"),
        (("orders", "--all"), "name a topic or a partition, or pass --all"),
    ],
)
def test_bounds_that_make_no_sense_set_nothing(
    rlmm: RlmmProcess, options: tuple[str, ...], error: str
) -> None:
    [tp] = a_topic("orders")
    finished(rlmm.client, tp, 0, 9)
    assert error in rlmm.refusal("holds", "set", "--reason", "test", *options)
    assert kept(rlmm) == {}


def hold_first(rlmm: RlmmProcess, name: str, *options: str) -> None:
    [tp] = a_topic("orders")
    finished(rlmm.client, tp, 0, 9)
    rlmm.answers("holds", "set", "orders-0", "--name", name, "--reason", "why", *options)


def test_a_legal_hold_ends_only_if_it_is_called_one(rlmm: RlmmProcess) -> None:
    hold_first(rlmm, "case 7", "--legal")
    end = ("holds", "end", "orders-0", "case 7")
    line = rlmm.refusal(*end)
    assert "hold case 7 (legal) keeps all offsets" in line
    assert line.endswith("`sediment holds end orders-0 'case 7' --legal` ends it")
    assert len(kept(rlmm)) == 1
    [ended] = rlmm.answers(*end, "--legal")
    assert (ended["name"], ended["kind"], kept(rlmm)) == ("case 7", "LEGAL", {})


def test_of_a_topic_no_hold_ends_beside_a_legal_one(rlmm: RlmmProcess) -> None:
    hold_first(rlmm, "bug", "--legal")
    rlmm.answers(*SET)
    for options in ((), ("--legal",)):
        rlmm.refusal("holds", "end", "orders", "bug", *options)
        assert len(kept(rlmm)) == 2
