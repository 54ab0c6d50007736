"""Confirm deletions that are too large for one day: `sediment deletions`."""

from services.api.calls import MutationContext
from services.cli.command import option
from services.cli.connections import Call, Topic, command_group, with_services
from services.cli.names import find_topic
from services.cli.output import say

app = command_group("Confirm deletions that are too large for one day.")


@app.command("confirm")
@with_services("rlmm")
def confirm(
    call: Call,
    name: Topic,
    revision: int | None = option(
        "Of the settings that were checked; the present ones by default."
    ),
    reason: str = option("Why, for RLMM's log.", default=""),
) -> None:
    """Let the deletions of a topic begin that wait because they are a large part of the tier.

    They wait if one day (UTC) would delete more than 20 % of the tier, and more than 10 GiB.
    The confirmation holds until the topic's settings change. Needs the role overrider.
    """
    with call.rlmm_client() as manager:
        topic = find_topic(manager, name)
        if revision is None:
            revision = manager.topic_config(topic.topic_id).revision
        manager.confirm_deletions(topic.topic_id, revision, MutationContext(reason=reason))
    call.show(
        topic.as_json() | {"config_revision": revision},
        lines=[f"topic {topic.name}: deletions by settings of revision {revision} are confirmed"],
    )
    say("a deleter's next pass begins them")
