"""Read, write and check the marker `.sediment`, which names the owner of a prefix."""

import json
import logging
import re
from dataclasses import dataclass

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError, RemoteStorageError
from services.rsm.locations import Location

FORMAT_VERSION = 1

PROBE_NAME = ".probe-"
"""Beginning of the names of probe objects, which have no owner."""

MARKER_NAME = ".sediment"
_DEPLOYMENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Marker:
    """The owner of a prefix.

    Attributes:
        deployment_id: made with the metadata database, which names the objects.
        location_id: the number of the place in custom metadata.
    """

    deployment_id: str
    location_id: int

    def __str__(self) -> str:
        return f"location {self.location_id} of deployment {self.deployment_id!r}"

    def to_bytes(self) -> bytes:
        document = {
            "format_version": FORMAT_VERSION,
            "deployment_id": self.deployment_id,
            "location_id": self.location_id,
        }
        return (json.dumps(document, indent=2) + "\n").encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> "Marker":
        """Read what to_bytes wrote; `key` names it in errors.

        Raises:
            CorruptSegmentError: not a marker, or of an unknown version.
        """
        try:
            document = json.loads(data)
            deployment_id, location_id = document["deployment_id"], document["location_id"]
            if document["format_version"] != FORMAT_VERSION or not isinstance(location_id, int):
                raise ValueError("unknown version")
            if _DEPLOYMENT_ID.fullmatch(deployment_id) is None:
                raise ValueError("no deployment id")
        except (ValueError, KeyError, TypeError) as e:
            text = f"{key}: not a marker of version {FORMAT_VERSION}"
            raise CorruptSegmentError(text) from e
        return cls(deployment_id, location_id)


def marker_key(location: Location) -> str:
    return f"{location.prefix}{MARKER_NAME}"


def read_marker(location: Location) -> Marker | None:
    """Read the marker of a location; None if it has none.

    Raises:
        CorruptSegmentError: the object under its key is something else.
    """
    key = marker_key(location)
    try:
        return Marker.from_bytes(location.backend.get(key), key)
    except RemoteResourceNotFoundError:
        return None


def require_marked(location: Location, deployment_id: str) -> None:
    """Check that the store of a location is reachable and has this deployment's marker.

    Sends one request, so that it can run each second. An unmounted volume, and a bucket that was
    emptied or replaced, would accept copies, but have no marker.

    Raises:
        RemoteStorageError: the marker is missing, or another deployment's.
        CorruptSegmentError: the object under its key is something else.
        RetriableRemoteStorageError: the store cannot be reached.
    """
    key = marker_key(location)
    try:
        found = Marker.from_bytes(location.backend.check_and_get(key), key)
    except RemoteResourceNotFoundError as e:
        raise RemoteStorageError(
            f"{location} has no {key}: mount its volume, or restore the right bucket; if only "
            "the marker was deleted, restart RSM without RSM_MARKER_REQUIRED"
        ) from e
    require_ours(location, found, deployment_id)


def require_ours(location: Location, found: Marker, deployment_id: str) -> None:
    """Raise RemoteStorageError if a marker names another deployment or another location number.

    Without a `deployment_id` only the number is compared.
    """
    ours = Marker(deployment_id or found.deployment_id, location.location_id)
    if found == ours:
        return
    if found.deployment_id != ours.deployment_id:
        remedy = (
            "use another bucket or prefix; if the deployment was only renamed, set "
            "RSM_DEPLOYMENT_ID to the one in the marker"
        )
    else:
        remedy = "set RSM_LOCATION_ID to the number in the marker, or use another prefix"
    raise RemoteStorageError(
        f"{marker_key(location)} of {location} says that it is {found}; here it is {ours}: {remedy}"
    )


def claim(location: Location, deployment_id: str) -> None:
    """Mark a location as this deployment's unless it is marked.

    Nothing is written if there is another deployment's marker. A location with objects and no
    marker, as earlier releases left it, is adopted.

    Raises:
        RemoteStorageError: it is another deployment's, or another location.
        CorruptSegmentError: its marker cannot be understood.
    """
    found = read_marker(location)
    if found is None:
        ours = Marker(deployment_id, location.location_id)
        adopted = _has_objects(location)
        if location.backend.put_if_absent(marker_key(location), ours.to_bytes()):
            if adopted:
                _log.warning("%s has objects and no marker: adopted as %s", location, ours)
            else:
                _log.info("%s is marked as %s", location, ours)
            return
        found = read_marker(location)
    if found is None:
        raise RemoteStorageError(f"{marker_key(location)} of {location} comes and goes")
    require_ours(location, found, deployment_id)


def _has_objects(location: Location) -> bool:
    tried_with = f"{location.prefix}{PROBE_NAME}"
    keys = location.backend.list_keys(location.prefix)
    return any(not key.startswith(tried_with) for key in keys)
