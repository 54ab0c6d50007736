import pytest

from tests.harness.eventually import eventually, eventually_holds


def test_the_first_truthy_result_is_returned() -> None:
    results = iter([None, 0, "there"])
    assert eventually(lambda: next(results)) == "there"


def test_an_assertion_that_fails_at_first_is_tried_again() -> None:
    counts = iter([1, 2, 3])

    def check() -> None:
        assert next(counts) == 3

    eventually_holds(check)


def test_at_the_deadline_the_last_failed_assertion_is_raised() -> None:
    def check() -> None:
        raise AssertionError("only 7 of 8 segments")

    with pytest.raises(AssertionError, match="only 7 of 8 segments"):
        eventually_holds(check, deadline_ms=50)


def test_at_the_deadline_a_falsy_result_is_named() -> None:
    with pytest.raises(AssertionError, match=r"still \[\] after 50 ms"):
        eventually(list, deadline_ms=50)


def test_another_error_passes_at_once() -> None:
    def check() -> bool:
        raise KeyError("a bug in the check")

    with pytest.raises(KeyError, match="a bug"):
        eventually(check, deadline_ms=60_000)
