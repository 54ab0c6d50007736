"""List and delete the objects of the stores, for reconciliation and rebuilds."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge, nsmallest
from itertools import islice
from typing import NamedTuple, TypeVar

from services.api.calls import current_call
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_storage_manager import CopyDigests
from services.api.segment_objects import (
    CURRENT_LOCATION,
    MAX_OBJECT_SHARDS,
    MAX_OBJECTS,
    KeysInUse,
    MultipartUpload,
    ObjectLocation,
    ObjectPage,
    ObjectQuery,
    ObjectToDelete,
    SegmentObject,
    SegmentObjectKind,
    SegmentObjectName,
    StoredManifest,
    UploadPage,
    require_location_id,
    require_state,
    segment_object_name,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import page_limit, require, require_count, seal, unseal, within
from services.rsm.active_copies import ActiveCopies
from services.rsm.backends.protocol import StoredObject, Upload
from services.rsm.deadline import next_slice, require_wanted, within_deadline
from services.rsm.delete import ObjectDeletes
from services.rsm.layout import SegmentKeys, keys_of_segment_with, partition_prefix
from services.rsm.locations import Location, Locations
from services.rsm.rewrap import KeyRewrap

MAX_LINE_BYTES = 1_024
"""The longest key of S3, and the longest id of an upload that may be aborted."""


def last_of_page(query: object, token: str) -> str:
    """Return the key that is sealed in a page token; an empty token means the beginning.

    Raises:
        InvalidRequestError: not a token of RSM, or one of another query.
    """
    if not token:
        return ""
    body = unseal(query, token)
    # A forged token may name any place to begin at, but no longer than a store accepts.
    is_short = all(len(line) <= MAX_LINE_BYTES for line in body.split(b"\n", 1))
    require(is_short, "page_token", "not a page token")
    return body.decode(errors="replace")


MAX_UPLOAD_ID_LENGTH = 1_024

STATE_NAME = ".state-"
"""Beginning of the names of a deployment's state, which no segment's objects have."""

_TOPIC_ID_PREFIXES = MAX_OBJECT_SHARDS
"""Prefixes of two hex digits; shards are ranges of them."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class StoredSegmentObjects:
    """The implementation of services.api.remote_storage_manager.SegmentObjects.

    Keys come from callers. Only a key that names an object of a segment, below the prefix of a
    registered location, is passed to a store.

    Attributes:
        require_open: raises unless the stores are known to be this deployment's.
        deployment_id: of this RSM; empty: manifests of others are not known as such.
    """

    locations: Locations
    deletes: ObjectDeletes
    active_copies: ActiveCopies
    require_open: Callable[[], None]
    deployment_id: str = ""

    def list_segment_objects(
        self, query: ObjectQuery, *, page_size: int = 0, page_token: str = ""
    ) -> ObjectPage:
        locations = self._listed(query.location_id)
        limit = page_limit(page_size, MAX_OBJECTS, MAX_OBJECTS)
        after = _Place.from_token(last_of_page(query, page_token))
        listings = (
            _of_shard(location, query, after, number) for number, location in enumerate(locations)
        )
        examined = list(islice(merge(*listings, key=lambda each: each[0]), limit))
        is_last = len(examined) < limit
        found = (_segment_object(locations[at.number], stored) for at, stored in examined)
        return ObjectPage(
            tuple(each for each in found if each is not None),
            "" if is_last else seal(query, examined[-1][0].to_token()),
        )

    def one_of_partition(self, tp: TopicIdPartition) -> str | None:
        """See RemoteStorageManager.find_partition_object."""
        for location in self.locations.all:
            prefix = partition_prefix(location.prefix, tp)
            found = (
                _segment_object(location, each) for each in location.backend.list_objects(prefix)
            )
            first = next((each for each in found if each is not None), None)
            if first is not None:
                return str(first.location)
        return None

    def list_multipart_uploads(
        self, location_id: int = CURRENT_LOCATION, *, page_size: int = 0, page_token: str = ""
    ) -> UploadPage:
        require_location_id(location_id, "location_id")
        locations, query = self._listed(location_id), ("uploads", location_id)
        limit = page_limit(page_size, MAX_OBJECTS, MAX_OBJECTS)
        last = last_of_page(query, page_token)
        # Stores list uploads in different orders, and few can begin in the middle.
        following = (
            (location, each)
            for location in locations
            for each in location.backend.list_uploads(location.prefix)
            if _order(each) > last
        )
        examined = nsmallest(limit, following, key=lambda each: _order(each[1]))
        is_last = len(examined) < limit
        return UploadPage(
            tuple(found for each in examined if (found := _upload(*each))),
            "" if is_last else seal(query, _order(examined[-1][1]).encode()),
        )

    def read_segment_manifest(self, location: ObjectLocation) -> StoredManifest:
        found, name = self._named(location)
        is_manifest = name.kind is SegmentObjectKind.MANIFEST
        require(is_manifest, "location.key", f"not a manifest: {location.key!r}")
        keys = keys_of_segment_with(location.key)
        manifest = found.read_manifest(keys, unsealed_too=True)
        custom_metadata = manifest.custom_metadata(found.number_in_metadata).to_bytes()
        return StoredManifest(
            metadata=replace(manifest.metadata, custom_metadata=custom_metadata),
            attempt=manifest.attempt,
            written_at_ms=manifest.written_at_ms,
            log_size_bytes=manifest.log_object_bytes,
            indexes_size_bytes=manifest.indexes_object_bytes,
            digests=CopyDigests(manifest.log, manifest.indexes),
            other_deployment_id=self._other_than_ours(manifest.deployment_id),
            is_unsealed=found.ring is not None and manifest.wrapped_key is None,
        )

    def _other_than_ours(self, deployment_id: str) -> str:
        """Return the id of another deployment; empty if it is ours, or either is unknown."""
        return deployment_id if self.deployment_id not in ("", deployment_id) else ""

    def delete_segment_objects(
        self, objects: Sequence[ObjectToDelete], *, committed_copies: bool = False
    ) -> list[RemoteStorageError | None]:
        require_count(objects, "objects", MAX_OBJECTS)
        locations = self._all_named([each.location for each in objects], "objects")
        named = dict(enumerate(zip(locations, objects, strict=True)))
        committed = None if committed_copies else _CommittedCopies()
        # Objects that need requests of their own before they are deleted go first: those with an
        # etag to compare, usually manifests, and all if manifests must be read.
        checked_first = deque(
            place for place, each in enumerate(objects) if committed or each.if_etag is not None
        )
        others = [] if committed else [p for p, each in enumerate(objects) if each.if_etag is None]
        outcomes: dict[int, RemoteStorageError | None] = {}
        with within_deadline():
            while checked_first:
                outcomes |= self._delete(named, next_slice(checked_first), committed)
            outcomes |= self._delete(named, others, committed)
        if committed_copies:
            _log.info(
                "%s deleted %d of %d objects, those of committed copies included; the first is %s",
                current_call().actor,
                sum(error is None for error in outcomes.values()),
                len(objects),
                objects[0].location,
            )
        return [outcomes[place] for place in named]

    def abort_multipart_uploads(
        self, uploads: Sequence[tuple[ObjectLocation, str]]
    ) -> list[RemoteStorageError | None]:
        require_count(uploads, "uploads", MAX_OBJECTS)
        for place, (_, upload_id) in enumerate(uploads):
            # On some stores the same request without an upload id deletes the object itself.
            is_one = 1 <= len(upload_id) <= MAX_UPLOAD_ID_LENGTH and upload_id.isprintable()
            require(is_one, f"uploads[{place}].upload_id", f"names no upload: {upload_id[:300]!r}")
        locations = self._all_named([location for location, _ in uploads], "uploads")
        with within_deadline():
            return [
                _error_of(self._abort, location, Upload(named.key, upload_id))
                for location, (named, upload_id) in zip(locations, uploads, strict=True)
            ]

    def rewrap_keys(
        self, metadatas: Sequence[RemoteLogSegmentMetadata], *, dry_run: bool = False
    ) -> KeysInUse:
        self.require_open()
        return KeyRewrap(self.locations).rewrap(metadatas, dry_run=dry_run)

    def put_deployment_state(self, name: str, data: bytes) -> None:
        require_state(name, data)
        location = self._location(CURRENT_LOCATION, "location_id")
        location.backend.put(_state_key(location, name), data)

    def deployment_state(self, name: str) -> bytes:
        require_state(name)
        location = self._location(CURRENT_LOCATION, "location_id")
        return location.backend.get(_state_key(location, name))

    def _delete(
        self,
        named: Mapping[int, tuple[Location, ObjectToDelete]],
        places: Iterable[int],
        committed: "_CommittedCopies | None",
    ) -> dict[int, RemoteStorageError | None]:
        """Check each of `places`, then delete the objects that may go; return each outcome."""
        outcomes: dict[int, RemoteStorageError | None] = {}
        keys: dict[Location, dict[int, str]] = {}
        for place in places:
            location, to_delete = named[place]
            outcomes[place] = _error_of(self._require_deletable, location, (to_delete, committed))
            if outcomes[place] is None:
                keys.setdefault(location, {})[place] = to_delete.location.key
        for location, its_keys in keys.items():
            failures = self.deletes.delete(location.backend, list(dict.fromkeys(its_keys.values())))
            outcomes |= {place: failures.get(key) for place, key in its_keys.items()}
        return outcomes

    def _abort(self, location: Location, upload: Upload) -> None:
        _require_not_read_only(location, upload.key)
        self.active_copies.require_none(keys_of_segment_with(upload.key))
        require_wanted()
        location.backend.abort_upload(upload)

    def _require_deletable(
        self, location: Location, item: "tuple[ObjectToDelete, _CommittedCopies | None]"
    ) -> None:
        """Raise unless an object may be deleted now.

        Bytes of a copy are never written again under their key, but a manifest may be. Between this
        check and the deletion only another copy under the same id could write it.
        """
        to_delete, committed = item
        key = to_delete.location.key
        _require_not_read_only(location, key)
        self.active_copies.require_none(keys_of_segment_with(key))
        require_wanted()
        if committed is not None:
            committed.require_not_of_one(location, key)
        if to_delete.if_etag is None:
            return
        found = location.backend.describe(key)
        if found is not None and found.etag != to_delete.if_etag:
            raise ConcurrentUpdateError(f"{key}: its etag is {found.etag!r} now")

    def _all_named(self, named: Sequence[ObjectLocation], field: str) -> list[Location]:
        locations = []
        for place, each in enumerate(named):
            with within(f"{field}[{place}]"):
                locations.append(self._named(each)[0])
        return locations

    def _named(self, named: ObjectLocation) -> tuple[Location, SegmentObjectName]:
        location = self._location(named.location_id, "location.location_id")
        name = segment_object_name(location.prefix, named.key)
        if name is None:
            text = f"location.key: names no object of a segment: {named.key[:300]!r}"
            raise InvalidRequestError(text)
        return location, name

    def _listed(self, location_id: int) -> Sequence[Location]:
        """Return the locations of a listing: one, or all that are written."""
        first = self._location(location_id, "location_id")
        return self.locations.written if location_id == CURRENT_LOCATION else (first,)

    def _location(self, location_id: int, field: str) -> Location:
        self.require_open()
        if location_id == CURRENT_LOCATION:
            return self.locations.current
        found = self.locations.numbered(location_id)
        if found is None:
            text = f"{field}: location {location_id} is not registered"
            raise InvalidRequestError(f"{text}; add it to RSM_LOCATIONS_FILE")
        return found


class _CommittedCopies:
    """Refuse to delete objects of copies whose manifest exists, for one call."""

    def __init__(self) -> None:
        self._needed: dict[tuple[Location, SegmentKeys], frozenset[str]] = {}

    def require_not_of_one(self, location: Location, key: str) -> None:
        """Raise unless no manifest needs the object.

        Raises:
            DeletionRefusedError: it is a manifest, or of the attempt that its manifest names.
            CorruptSegmentError: its manifest is damaged, so that it is unknown what it names.
        """
        keys = keys_of_segment_with(key)
        if (location, keys) not in self._needed:
            self._needed[location, keys] = _committed_keys(location, keys)
        if key in self._needed[location, keys]:
            raise DeletionRefusedError(
                f"{key} in {location}: object of a committed copy ({keys.manifest} exists); delete "
                "the segment through its metadata, or set committed_copies if you mean this object"
            )


def _require_not_read_only(location: Location, key: str) -> None:
    if location.read_only:
        raise DeletionRefusedError(f"{key}: {location} is read-only")


def _committed_keys(location: Location, keys: SegmentKeys) -> frozenset[str]:
    # Most have none, and of an archived one only the description can be read.
    if location.backend.describe(keys.manifest) is None:
        return frozenset()
    try:
        attempt = location.read_manifest(keys, unsealed_too=True).attempt
    except RemoteResourceNotFoundError:
        return frozenset()
    return frozenset((keys.manifest, keys.log(attempt), keys.indexes(attempt)))


class _Place(NamedTuple):
    """The place of an object in a listing of locations: its key below the prefix, its location."""

    name: str
    number: int

    def to_token(self) -> bytes:
        return f"{self.name}\n{self.number}".encode()

    @classmethod
    def from_token(cls, text: str) -> "_Place":
        name, _, number = text.rpartition("\n")
        require(not text or number.isdecimal(), "page_token", "not a page token")
        return cls(name, int(number or 0))


def _of_shard(
    location: Location, query: ObjectQuery, after: _Place, number: int
) -> Iterator[tuple[_Place, StoredObject]]:
    """Yield the objects of a shard that follow a place; `number` is that of the location."""
    first = -(-query.shard * _TOPIC_ID_PREFIXES // query.shards)
    end = -(-(query.shard + 1) * _TOPIC_ID_PREFIXES // query.shards)
    begin, key = f"{location.prefix}{first:02x}", f"{location.prefix}{after.name}"
    if after.name and number > after.number and (same := location.backend.describe(key)):
        yield _Place(after.name, number), same
    for stored in location.backend.list_objects(location.prefix, max(key, begin)):
        if stored.key >= f"{location.prefix}{end:02x}" and end < _TOPIC_ID_PREFIXES:
            return
        yield _Place(stored.key.removeprefix(location.prefix), number), stored


def _order(upload: Upload) -> str:
    return f"{upload.key}\n{upload.upload_id}"


def _segment_object(location: Location, stored: StoredObject) -> SegmentObject | None:
    name = segment_object_name(location.prefix, stored.key)
    if name is None:
        return None
    where = ObjectLocation(location.location_id, stored.key)
    mirror_id = location.mirror_id or location.mirror_of
    return SegmentObject(where, name, stored.size_bytes, stored.etag, stored.modified_ms, mirror_id)


def _upload(location: Location, upload: Upload) -> MultipartUpload | None:
    name = segment_object_name(location.prefix, upload.key)
    if name is None:
        return None
    where = ObjectLocation(location.location_id, upload.key)
    return MultipartUpload(where, upload.upload_id, name, upload.begun_ms)


def _error_of(
    work: Callable[[Location, T], None], location: Location, item: T
) -> RemoteStorageError | None:
    try:
        work(location, item)
    except RemoteStorageError as e:
        return e
    return None


def _state_key(location: Location, name: str) -> str:
    return f"{location.prefix}{STATE_NAME}{name}"
