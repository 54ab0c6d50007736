"""The checker finds every violation, for the right reason, and accepts legal histories."""

import pytest

from tests.deep.histories.checker import check
from tests.deep.histories.legal_histories import LEGAL, Legal
from tests.deep.histories.search import NotLinearizableError
from tests.deep.histories.stories import Story
from tests.deep.histories.violations import VIOLATIONS, Violation


@pytest.mark.parametrize("violation", VIOLATIONS, ids=lambda each: each.__name__)
def test_a_violation_is_found_and_named(violation: Violation) -> None:
    story = Story()
    culprit = violation(story)
    with pytest.raises(NotLinearizableError) as caught:
        check(story.history())
    assert culprit in caught.value.unexplained
    assert f"#{culprit.number} " in str(caught.value)


@pytest.mark.parametrize("violation", VIOLATIONS, ids=lambda each: each.__name__)
def test_without_its_one_wrong_record_a_violation_is_legal(violation: Violation) -> None:
    story = Story()
    culprit = violation(story)
    check(story.history(without=culprit))


@pytest.mark.parametrize("legal", LEGAL, ids=lambda each: each.__name__)
def test_a_legal_history_has_an_order(legal: Legal) -> None:
    story = Story()
    legal(story)
    check(story.history())
