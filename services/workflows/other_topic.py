"""Show a topic of another deployment's location under another name, for a rebuild."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from services.api.errors import DeletionRefusedError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_to_text
from services.api.segment_objects import (
    ObjectLocation,
    ObjectPage,
    ObjectQuery,
    ObjectToDelete,
    SegmentObject,
    SegmentObjectKind,
    SegmentObjects,
    StoredManifest,
    all_segment_objects,
)

_NO_ETAG = "-"
"""No object has it."""


class OtherTopic:
    """The objects of one topic, as if they were of this deployment and the topic had the name."""

    def __init__(self, objects: SegmentObjects, topic_id: UUID, name: str) -> None:
        self._objects = objects
        self._topic_id = topic_id
        self._name = name

    def list_segment_objects(self, query: ObjectQuery, **options: Any) -> ObjectPage:
        page = self._objects.list_segment_objects(query, **options)
        of_topic = (each for each in page.objects if each.name.topic_id == self._topic_id)
        return replace(page, objects=tuple(of_topic))

    def read_segment_manifest(self, location: ObjectLocation) -> StoredManifest:
        stored = self._objects.read_segment_manifest(location)
        segment = stored.metadata.remote_log_segment_id
        partition = segment.topic_id_partition.partition
        renamed = RemoteLogSegmentId(
            TopicIdPartition(self._topic_id, self._name, partition), segment.id
        )
        metadata = replace(stored.metadata, remote_log_segment_id=renamed)
        return replace(stored, metadata=metadata, other_deployment_id="")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


def other_topic(objects: SegmentObjects, location_id: int, topic: str, name: str) -> OtherTopic:
    """Return the objects of a location's topic under another name.

    Args:
        topic: its name there or its id; "": the location has one topic.

    Raises:
        InvalidRequestError: there is no such topic, or there are several; or the location is not
            read-only, so that retention would delete the other deployment's objects.
    """
    first = _first_manifests(objects, location_id)
    named = {id: objects.read_segment_manifest(each.location) for id, each in first.items()}
    topics = {id: each.metadata.topic_id_partition.topic for id, each in named.items()}
    found = [id for id, its_name in topics.items() if topic in ("", its_name, uuid_to_text(id))]
    if len(found) != 1:
        listed = ", ".join(sorted(f"{uuid_to_text(id)}:{text}" for id, text in topics.items()))
        what = f"has no topic {topic}" if topic and not found else "has several such topics"
        raise InvalidRequestError(
            f"topic: location {location_id} {what if topics else 'has no topic'}; give one, by its "
            f"name or id, of: {listed or 'none'}"
        )
    _require_read_only(objects, first[found[0]])
    return OtherTopic(objects, found[0], name)


def _first_manifests(objects: SegmentObjects, location_id: int) -> Mapping[UUID, SegmentObject]:
    first: dict[UUID, SegmentObject] = {}
    for each in all_segment_objects(objects, ObjectQuery(location_id)):
        if each.name.kind is SegmentObjectKind.MANIFEST:
            first.setdefault(each.name.topic_id, each)
    return first


def _require_read_only(objects: SegmentObjects, any_object: SegmentObject) -> None:
    """Ask for a deletion that nothing permits: RSM says first that a location is read-only."""
    to_delete = ObjectToDelete(any_object.location, if_etag=_NO_ETAG)
    [outcome] = objects.delete_segment_objects([to_delete], committed_copies=True)
    if not isinstance(outcome, DeletionRefusedError):
        location_id = any_object.location.location_id
        raise InvalidRequestError(
            f"location: {location_id} is not read-only, so that retention would delete what "
            "another deployment needs; set read_only = true in RSM_LOCATIONS_FILE"
        )
