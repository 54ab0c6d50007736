"""Check that the budget of CPU time fails a costly test, and only such a test."""

import pytest

# A tenth of the real budget, so that this test keeps it.
COSTLY = """
import time, pytest
from tests import budget

budget.BUDGET_S, budget.FAILS_AT_S = 0.1, 0.2

def burn(cpu_s=0.8):
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass

def test_costly():
    burn()

def test_over_the_budget():
    burn(0.11)

@pytest.mark.deep
def test_deep():
    burn()

def test_that_waits():
    time.sleep(0.3)
"""


@pytest.mark.deep
def test_a_costly_test_fails_unless_it_is_deep(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(COSTLY)
    pytester.makeini("[pytest]\nmarkers = deep: takes long")
    result = pytester.runpytest_subprocess("-p", "tests.budget")
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.fnmatch_lines(["*used 0.8* s of CPU, over the budget of 0.1 s*"])
    result.stdout.fnmatch_lines(["over the budget of 0.1 s of CPU: *::test_over_the_budget"])
