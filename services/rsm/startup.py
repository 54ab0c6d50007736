"""Refuse calls until the store is known to be this deployment's, and able to store segments."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.locations import Location, Locations
from services.rsm.probe import (
    PROBE_NAME,
    WITHOUT,
    ProbeReport,
    RuleLevel,
    StoreProbe,
    StoreRule,
)

MARKER_NAME = ".sediment"
_READ_AGAIN_S = 60.0
_READ_RULES_AGAIN_S = 3600.0
_OF_EACH_CALL = (StoreNotFoundError, StoreAccessDeniedError)
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


class StartUp:
    """Refuses calls until `check` has passed once, and while it finds that RSM must not serve.

    One thread at a time may call `check`, repeatedly. Calls may be served meanwhile.
    """

    def __init__(
        self,
        locations: Locations,
        probe: StoreProbe,
        deployment_id: str = "",
        now_s: Callable[[], float] = time.monotonic,
        read_rules: Callable[[], Sequence[StoreRule]] = tuple,
        *,
        marker_required: bool = False,
        checked_first: bool = False,
    ) -> None:
        """Set up the checks of all locations.

        Args:
            deployment_id: empty: write no marker.
            read_rules: reads what the stores do by themselves; raises no error of a store.
            marker_required: the marker must exist; none is written.
            checked_first: calls wait for the first check. They wait also with a `deployment_id` or
                `marker_required`.
        """
        self._current = locations.current
        self._probe = probe
        self._deployment_id = deployment_id
        self._now_s = now_s
        self._read_rules = read_rules
        self._rules: Sequence[StoreRule] = ()
        self._read_rules_at_s = 0.0
        # Whether the current location must have its marker: it was read, written or is required.
        self._must_be_marked = marker_required
        self._is_started = False
        # Why calls are refused; None if they are served.
        self._problem: str | None = None
        if checked_first or marker_required or deployment_id:
            self._problem = "its store is not checked yet"
        # What a probe found lacking; it runs again only after the store was not reachable.
        self._lacks = ""
        # Other locations whose markers are unread, in order; the values mean nothing.
        self._unread = dict.fromkeys(locations.others)
        self._read_again_at_s = 0.0

    @property
    def deployment_id(self) -> str:
        """Return the deployment's id; empty if this process has none."""
        return self._deployment_id

    @property
    def rules(self) -> Sequence[StoreRule]:
        """Return what the stores do by themselves, as of the last hour; empty before a check."""
        return self._rules

    def check(self) -> None:
        """Check that the current location can be used; one request once this has passed.

        Every hour the rules of the stores are read, too.

        Raises:
            RemoteStorageError: no such bucket; another deployment's marker in any location; no
                marker in a location that had one; a store that lacks a required capability.
            RetriableRemoteStorageError: the current location cannot be reached.
        """
        try:
            self._require_current_marker()
            if not self._is_started:
                self._start()
                self._is_started, self._problem = True, None
            self._refresh_rules()
        except RetriableRemoteStorageError:
            # The store may have been replaced or repaired when it is available again.
            self._lacks = ""
            raise
        except RemoteStorageError as e:
            # If no marker can be missed, each call meets the store's own error.
            if self._must_be_marked or not isinstance(e, _OF_EACH_CALL):
                self._refuse_calls(e)
            raise

    def inspect(self) -> ProbeReport:
        """Probe the store of the current location; leave no probe objects and no marker.

        Raises:
            RemoteStorageError, RetriableRemoteStorageError: as `check`, except for missing
                capabilities.
        """
        self._require_current_marker()
        self._require_unread_markers()
        return replace(self._probe.run(), rules=tuple(self._read_rules()))

    def require_open(self) -> None:
        """Check that calls may be served.

        The first call in 60 s reads the markers of other locations that could not be read before.

        Raises:
            RetriableRemoteStorageError: the check has not passed, or the store must not be used.
        """
        if self._unread and self._is_started and self._now_s() >= self._read_again_at_s:
            try:
                self._require_unread_markers()
            except RemoteStorageError as e:
                self._refuse_calls(e)
        if self._problem is not None:
            raise RetriableRemoteStorageError(f"RSM is not ready: {self._problem}")

    def _refuse_calls(self, problem: RemoteStorageError) -> None:
        self._problem, self._is_started = str(problem), False

    def _refresh_rules(self) -> None:
        """Read the rules if an hour has passed; log those that are new and bad."""
        if self._rules and self._now_s() < self._read_rules_at_s:
            return
        before, self._rules = self._rules, self._read_rules()
        self._read_rules_at_s = self._now_s() + _READ_RULES_AGAIN_S
        for rule in self._rules:
            if rule not in before and rule.level in (RuleLevel.WARNING, RuleLevel.CRITICAL):
                _log.warning("the store: %s", rule.text)

    def _start(self) -> None:
        self._require_unread_markers()
        if not self._lacks:
            self._probe_current()
        if self._lacks:
            raise RemoteStorageError(f"{self._current.place} cannot keep segments: {self._lacks}")
        if self._deployment_id and not self._must_be_marked:
            self._mark_current()

    def _probe_current(self) -> None:
        """Probe the current location; log the whole report for machines, and what is lacking."""
        report, location = self._probe.run(), self._current
        _log.info("probed the store of location %d", location.location_id, extra=report.as_json())
        if report.degraded:
            without = "; ".join(f"{f}: {WITHOUT[f.capability]}" for f in report.degraded)
            _log.warning("%s is used though it lacks something: %s", location.place, without)
        self._lacks = "; ".join(map(str, report.refused))

    def _require_current_marker(self) -> None:
        """Check that the current location is reachable and has no other deployment's marker.

        A marker that was there must stay: an unmounted volume, and a bucket that was emptied or
        replaced, would accept copies, but have no marker.
        """
        key = _marker_key(self._current)
        try:
            data = self._current.backend.check_and_get(key)
        except RemoteResourceNotFoundError as e:
            if self._must_be_marked:
                raise RemoteStorageError(
                    f"{self._current} has no {key}: mount its volume, or restore the right bucket; "
                    "if only the marker was deleted, restart RSM without RSM_MARKER_REQUIRED"
                ) from e
        else:
            _require_ours(self._current, data, self._deployment_id)
            self._must_be_marked = True

    def _require_unread_markers(self) -> None:
        """Check that no other location has another deployment's marker.

        The marker of a location that cannot be reached stays unread.
        """
        # Set first, so that only one of concurrent calls reads them.
        self._read_again_at_s = self._now_s() + _READ_AGAIN_S
        for location in tuple(self._unread):
            data = None
            try:
                data = location.backend.get(_marker_key(location))
            except RemoteResourceNotFoundError:
                pass
            except RetriableRemoteStorageError as e:
                text = "%s cannot be read; its marker is checked in %.0f s: %s"
                _log.warning(text, location, _READ_AGAIN_S, e)
                continue
            except RemoteStorageError as e:
                raise RemoteStorageError(f"the marker of {location} cannot be used: {e}") from e
            if data is not None:
                _require_ours(location, data, self._deployment_id)
            self._unread.pop(location, None)

    def _mark_current(self) -> None:
        """Mark the current location, which had no marker, as this deployment's.

        A location with the objects of an RSM without a deployment id is adopted.
        """
        location, backend = self._current, self._current.backend
        ours = Marker(
            format_version=1, deployment_id=self._deployment_id, location_id=location.location_id
        )
        probed = f"{location.prefix}{PROBE_NAME}"
        stored = backend.list_objects(location.prefix)
        is_adopted = any(not each.key.startswith(probed) for each in stored)
        document = ours.model_dump_json(indent=2) + "\n"
        is_new = backend.put_if_absent(_marker_key(location), document.encode("ascii"))
        self._must_be_marked = True
        if not is_new:
            # Another process was faster.
            self._require_current_marker()
        elif is_adopted:
            _log.warning("%s has objects and no marker: adopted as %s", location, ours)
        else:
            _log.info("%s is marked as %s", location, ours)


def _marker_key(location: Location) -> str:
    return f"{location.prefix}{MARKER_NAME}"


def _require_ours(location: Location, data: bytes, deployment_id: str) -> None:
    """Check that a marker names this deployment, if it is known, and the location's number.

    Raises:
        CorruptSegmentError: not a marker, or of an unknown version.
        RemoteStorageError: another deployment's marker, or another number.
    """
    key = _marker_key(location)
    try:
        found = Marker.model_validate_json(data)
    except ValidationError as e:
        raise CorruptSegmentError(f"{key} of {location}: not a marker of version 1") from e
    if deployment_id not in ("", found.deployment_id):
        remedy = (
            "use another bucket or prefix; if the deployment was only renamed, set "
            "RSM_DEPLOYMENT_ID to the one in the marker"
        )
    elif found.location_id != location.location_id:
        remedy = "set RSM_LOCATION_ID to the number in the marker, or use another prefix"
    else:
        return
    here = f"location {location.location_id} of deployment {deployment_id or found.deployment_id!r}"
    raise RemoteStorageError(
        f"{key} of {location} says that it is {found}; here it is {here}: {remedy}"
    )
