"""Check that the budget of CPU time fails a costly test, and only such a test."""

import pytest

COSTLY = """
import time, pytest

def burn():
    end = time.process_time() + 2.4
    while time.process_time() < end:
        pass

def test_costly():
    burn()

@pytest.mark.deep
def test_deep():
    burn()

def test_that_waits():
    time.sleep(1.2)
"""


def test_a_costly_test_fails_unless_it_is_deep(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(COSTLY)
    pytester.makeini("[pytest]\nmarkers = deep: takes long")
    result = pytester.runpytest_subprocess("-p", "tests.budget")
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["*used 2.4* s of CPU, over the budget of 1 s*"])
