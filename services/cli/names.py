"""Find topics and partitions by the names that people type: [TOPIC_ID:]TOPIC[-PARTITION]."""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import filter
from typing import TypeVar
from uuid import UUID

from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_manager import RemoteLogManager, all_descriptions
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.cli.connections import Call
from services.cli.output import CommandError
from services.views.texts import partition_text
from services.views.topics import TopicFigures, sum_topics

T = TypeVar("T")
_LIST = "`sediment topics list` lists its topics"
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,10})")


class UnknownPartitionError(CommandError):
    """The error for a partition that the service does not know, and a guess which one is meant."""

    def __init__(self, name: str, guess: str) -> None:
        removed = (
            f"of a removed one pass TOPIC_ID:{name} (`sediment topics list --removed -o wide`)"
        )
        what = guess or f"{_LIST}; {removed}"
        super().__init__(f"the tier has no partition {name}; {what}")
        self.guess = guess


def known_topics(
    manager: RemoteLogMetadataManager,
    name: str = "",
    states: Sequence[RemotePartitionDeleteState] = (),
) -> list[TopicFigures]:
    """List the topics in the tier, or those of one name, ordered by name and id.

    Args:
        states: only with their partitions in one of these; empty: all that are not removed.
    """
    summaries = all_partitions(manager, topic=name, delete_states=states)
    topics = sum_topics(summaries).values()
    return sorted(topics, key=lambda topic: (topic.name, topic.topic_id.hex))


def chosen_topics(
    manager: RemoteLogMetadataManager,
    names: Sequence[str] | None,
    states: Sequence[RemotePartitionDeleteState] = (),
) -> list[TopicFigures]:
    """List the topics of these names or patterns, each once; all topics if there are none.

    Raises as find_topic.
    """
    if names and not states and not any(map(_is_pattern, names)):
        found = (find_topic(manager, name) for name in names)
        return [*{topic.topic_id: topic for topic in found}.values()]
    known = known_topics(manager, "", states)
    return matching(known, names, lambda t: (t.name, f"{uuid_to_text(t.topic_id)}:{t.name}"))


def find_topic(manager: RemoteLogMetadataManager, text: str) -> TopicFigures:
    """Find a topic by NAME or TOPIC_ID:NAME.

    Raises:
        CommandError: the topic is unknown, or several topics have had this name.
        InvalidRequestError: TOPIC_ID is not an id.
    """
    topic_id, name = _split(text)
    known = known_topics(manager, name) if name else []
    topics = [topic for topic in known if topic_id in (None, topic.topic_id)]
    if not topics:
        names = {topic.name for topic in known_topics(manager)}
        raise CommandError(f"the tier has no topic {text}; {_guess(name, names) or _LIST}")
    _require_one(name, name, [topic.topic_id for topic in topics])
    return topics[0]


def find_partition(manager: RemoteLogMetadataManager, text: str) -> TopicIdPartition:
    """Find a partition by TOPIC-PARTITION or TOPIC_ID:TOPIC-PARTITION, as RLMM names it.

    Raises:
        CommandError: the name has another form, is unknown, or belongs to several topics.
        InvalidRequestError: TOPIC_ID is not an id.
    """
    return _find_partition(
        text, lambda topic="": (s.topic_id_partition for s in all_partitions(manager, topic=topic))
    )


def chosen_partitions(
    manager: RemoteLogMetadataManager, texts: Sequence[str]
) -> list[TopicIdPartition]:
    """List the partitions of these names, topics or patterns.

    Raises as find_partition.
    """
    if all(_PARTITION.fullmatch(text) and not _is_pattern(text) for text in texts):
        return [find_partition(manager, text) for text in texts]
    known = [summary.topic_id_partition for summary in all_partitions(manager)]
    return matching(known, texts, names_of_partition)


def find_readable_partition(rlm: RemoteLogManager, text: str, call: Call) -> TopicIdPartition:
    """Find a partition that RLM serves; one that RLM does not know is looked up in RLMM.

    Raises as find_partition.
    """
    try:
        return _find_partition(
            text,
            lambda *topics: (d.topic_id_partition for d in all_descriptions(rlm, topics)),
        )
    except UnknownPartitionError as of_rlm:
        with call.rlmm_client() as metadata:
            try:
                return find_partition(metadata, text)
            except UnknownPartitionError as e:
                raise (of_rlm if of_rlm.guess and not e.guess else e) from None


def _find_partition(
    text: str, partitions_of: Callable[..., Iterable[TopicIdPartition]]
) -> TopicIdPartition:
    """Find a partition among those of its topic; the similar one may be of any."""
    topic_id, name = _split(text)
    match = _PARTITION.fullmatch(name)
    if match is None:
        raise CommandError(f"{text!r} is not TOPIC-PARTITION, for example orders-0")
    topic, partition = match["topic"], int(match["partition"])
    if topic_id is not None:
        return TopicIdPartition(topic_id, topic, partition)
    of_topic = [*partitions_of(topic)]
    partitions = [each for each in of_topic if each.partition == partition]
    if not partitions:
        names = {partition_text(each) for each in of_topic or partitions_of()}
        raise UnknownPartitionError(name, _guess(name, names))
    _require_one(topic, name, [each.topic_id for each in partitions])
    return partitions[0]


def matching(
    items: Iterable[T], patterns: Sequence[str] | None, names_of: Callable[[T], Sequence[str]]
) -> list[T]:
    """Return the items of which a name matches one of the patterns; all if there are none.

    Raises:
        CommandError: a pattern matches none.
    """
    named = [(item, names_of(item)) for item in items]
    for pattern in patterns or ():
        if not any(filter(names, pattern) for _, names in named):
            every_name = {name for _, names in named for name in names}
            raise CommandError(
                f"nothing is named {pattern}; {_guess(pattern, every_name) or _LIST}"
            )
    wanted = patterns or ("*",)
    return [item for item, names in named if any(filter(names, each) for each in wanted)]


def names_of_partition(tp: TopicIdPartition) -> Sequence[str]:
    """Return the names by which a pattern may mean a partition."""
    names = (tp.topic, partition_text(tp))
    return (*names, *(f"{uuid_to_text(tp.topic_id)}:{name}" for name in names))


def _is_pattern(text: str) -> bool:
    return not {*"*?["}.isdisjoint(text)


def _guess(name: str, names: Iterable[str]) -> str:
    """Ask for the most similar of some names; "" if none is similar."""
    similar = get_close_matches(name, names, 1)
    return f"did you mean {similar[0]}?" if similar else ""


def _split(text: str) -> tuple[UUID | None, str]:
    id_text, colon, name = text.rpartition(":")
    return (uuid_from_text(id_text, "topic id") if colon else None), name


def _require_one(topic: str, name: str, topic_ids: Sequence[UUID]) -> None:
    if len(topic_ids) > 1:
        ids = ", ".join(f"{uuid_to_text(each)}:{name}" for each in topic_ids)
        raise CommandError(f"several topics have had the name {topic}; pass one of {ids}")
