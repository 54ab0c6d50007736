"""Test which database may replace the state that the bucket keeps."""

from dataclasses import replace
from uuid import UUID

from services.api.deployment_state import DeploymentState, TopicState
from services.workflows.deployment_state import Head, refusal

DEPLOYMENT = UUID(int=9)
ORDERS = TopicState(UUID(int=1), "orders", {"retention.ms": "1000"}, 5, {0: 150})


def test_more_changes_alone_do_not_make_a_restored_database_newer() -> None:
    kept = Head(DEPLOYMENT, changes=100, kept_at_ms=1, slot="a", parts=1)
    same = DeploymentState(DEPLOYMENT, 200, (ORDERS,))
    assert refusal(kept, same, [ORDERS]) == ""
    earlier = (replace(ORDERS, settings={}, settings_revision=4), replace(ORDERS, log_starts={}))
    for topics in ((), *((each,) for each in earlier)):
        assert "topic orders" in refusal(kept, replace(same, topics=topics), [ORDERS])
    settled = replace(kept, is_settled=True)
    assert refusal(settled, replace(same, topics=()), [ORDERS]) == ""
