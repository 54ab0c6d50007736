"""Mark the prefixes of locations as a deployment's, and prepare those that are written."""

import logging
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.rsm.locations import Location
from services.rsm.probe import PROBE_NAME, WITHOUT, ProbeReport, StoreProbe

MARKER_NAME = ".sediment"
_log = logging.getLogger(__name__)


class Marker(BaseModel):
    """The owner of a prefix, as the object `.sediment` below it names it.

    Attributes:
        deployment_id: made with the metadata database, which names the objects.
        location_id: the number of the place in custom metadata.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    format_version: Literal[1]
    deployment_id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")
    location_id: int

    def __str__(self) -> str:
        return f"location {self.location_id} of deployment {self.deployment_id!r}"


class WrittenLocation:
    """A location that is written: probes its store, and reads and writes its marker.

    Attributes:
        must_be_marked: the location must have its marker: it was read, written or is required.
    """

    def __init__(
        self, location: Location, probe: StoreProbe, deployment_id: str, *, marker_required: bool
    ) -> None:
        """Set up the checks; with an empty `deployment_id` no marker is written."""
        self.location = location
        self.must_be_marked = marker_required
        self._probe = probe
        self._deployment_id = deployment_id
        # What a probe found lacking; it runs again only after `forget`.
        self._lacks = ""

    def prepare(self) -> None:
        """Check that the store can keep segments, and mark the location unless it is marked.

        Raises:
            RemoteStorageError: the store lacks a required capability.
        """
        if not self._lacks:
            self._probe_store()
        if self._lacks:
            raise RemoteStorageError(f"{self.location.place} cannot keep segments: {self._lacks}")
        if self._deployment_id and not self.must_be_marked:
            self._mark()

    def forget(self) -> None:
        """Let the next `prepare` probe again: the store may have been replaced or repaired."""
        self._lacks = ""

    def inspect(self) -> ProbeReport:
        """Probe the store; leave no probe objects."""
        return self._probe.run()

    def _probe_store(self) -> None:
        """Probe the store; log the whole report for machines, and what is lacking."""
        report, location = self._probe.run(), self.location
        _log.info("probed the store of location %d", location.location_id, extra=report.as_json())
        if report.degraded:
            without = "; ".join(f"{f}: {WITHOUT[f.capability]}" for f in report.degraded)
            _log.warning("%s is used though it lacks something: %s", location.place, without)
        self._lacks = "; ".join(map(str, report.refused))

    def require_marker(self) -> None:
        """Check that the location is reachable and has no other deployment's marker.

        A marker that was there must stay: an unmounted volume, and a bucket that was emptied or
        replaced, would accept copies, but have no marker.
        """
        key = marker_key(self.location)
        try:
            data = self.location.backend.check_and_get(key)
        except RemoteResourceNotFoundError as e:
            if self.must_be_marked:
                raise RemoteStorageError(
                    f"{self.location} has no {key}: mount its volume, or restore the right bucket; "
                    "if only the marker was deleted, restart RSM without RSM_MARKER_REQUIRED"
                ) from e
        else:
            require_ours(self.location, data, self._deployment_id)
            self.must_be_marked = True

    def _mark(self) -> None:
        """Mark the location, which had no marker, as this deployment's.

        A location with the objects of an RSM without a deployment id is adopted.
        """
        location, backend = self.location, self.location.backend
        ours = Marker(
            format_version=1, deployment_id=self._deployment_id, location_id=location.location_id
        )
        probed = f"{location.prefix}{PROBE_NAME}"
        stored = backend.list_objects(location.prefix)
        is_adopted = any(not each.key.startswith(probed) for each in stored)
        document = ours.model_dump_json(indent=2) + "\n"
        is_new = backend.put_if_absent(marker_key(location), document.encode("ascii"))
        self.must_be_marked = True
        if not is_new:
            # Another process was faster.
            self.require_marker()
        elif is_adopted:
            _log.warning("%s has objects and no marker: adopted as %s", location, ours)
        else:
            _log.info("%s is marked as %s", location, ours)


def marker_key(location: Location) -> str:
    return f"{location.prefix}{MARKER_NAME}"


def require_ours(location: Location, data: bytes, deployment_id: str) -> None:
    """Check that a marker names this deployment, if it is known, and the location's number.

    Raises:
        CorruptSegmentError: not a marker, or of an unknown version.
        RemoteStorageError: another deployment's marker, or another number.
    """
    key = marker_key(location)
    try:
        found = Marker.model_validate_json(data)
    except ValidationError as e:
        raise CorruptSegmentError(f"{key} of {location}: not a marker of version 1") from e
    if deployment_id not in ("", found.deployment_id):
        remedy = (
            "use another bucket or prefix; if the deployment was only renamed, set "
            "RSM_DEPLOYMENT_ID to the one in the marker"
        )
    elif found.location_id not in (location.location_id, location.number_in_metadata):
        remedy = "set RSM_LOCATION_ID to the number in the marker, or use another prefix"
    else:
        return
    here = f"location {location.location_id} of deployment {deployment_id or found.deployment_id!r}"
    raise RemoteStorageError(
        f"{key} of {location} says that it is {found}; here it is {here}: {remedy}"
    )
