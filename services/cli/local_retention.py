"""Change who deletes a topic's local records, in RLMM and at the brokers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from services.api.local_retention import OF_OWNER, GroupBehind, LocalRetentionChange
from services.api.offset_queries import OffsetService
from services.api.topic_config import LOCAL_RETENTION_OWNER, LocalRetentionOwner, StoredTopicConfig
from services.cli.output import CommandError
from services.views.topics import TopicFigures

_Put = Callable[[Mapping[str, str], Sequence[str]], tuple[StoredTopicConfig, StoredTopicConfig]]
_RLM = LocalRetentionOwner.RLM


def put_owner(
    rlm: OffsetService,
    topic: TopicFigures,
    present: Mapping[str, str],
    changes: Mapping[str, str],
    unset: Sequence[str],
    put: _Put,
    *,
    yes: bool,
) -> tuple[StoredTopicConfig, StoredTopicConfig]:
    """Put settings, sediment.local.retention.owner among them; return them before and after.

    RLMM remembers the brokers' retention before it changes. A killed command is repeated.
    """
    others = {key: value for key, value in changes.items() if key not in OF_OWNER}
    change = partial(LocalRetentionChange, topic.topic_id, topic.name)
    if changes.get(LOCAL_RETENTION_OWNER) != _RLM.value:
        rlm.set_local_retention_owner(change(LocalRetentionOwner.BROKER, apply=True))
        return put(others, sorted({*unset, *(each for each in OF_OWNER if each in present)}))
    coming = {key: value for key, value in {**present, **others}.items() if key not in unset}
    found = rlm.set_local_retention_owner(change(_RLM, settings=coming))
    if found.groups and not yes:
        raise CommandError(_groups_text(topic.name, found.groups))
    stored = put({**others, **found.as_entries()}, unset)
    rlm.set_local_retention_owner(change(_RLM, apply=True))
    return stored


def _groups_text(topic: str, groups: Sequence[GroupBehind]) -> str:
    shown = ", ".join(
        f"{g.group} (partition {g.partition}: {g.committed_offset}, below "
        f"{g.coming_log_start_offset})"
        for g in groups[:10]
    )
    return (
        f"of topic {topic} the brokers will no longer have what {len(groups):,} places of consumer "
        f"groups are at: {shown}. They must read through RLM's listener: at the brokers "
        "auto.offset.reset=latest would skip records. Pass --yes if they do; nothing was changed"
    )
