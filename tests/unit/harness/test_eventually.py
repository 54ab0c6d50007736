import pytest

from tests.harness.eventually import eventually, eventually_holds


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
