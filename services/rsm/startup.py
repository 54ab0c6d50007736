"""Check the store's presence, owner and capabilities before and while RSM serves."""

import logging
import time
from collections.abc import Callable

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rsm.locations import Location, Locations
from services.rsm.marker import claim, read_marker, require_marked, require_ours
from services.rsm.probe import WITHOUT, ProbeReport, StoreProbe

_READ_AGAIN_S = 60.0
_log = logging.getLogger(__name__)


class StartUp:
    """Refuses calls until `check` has passed once.

    One thread at a time may call `check`, repeatedly: after the first success it makes one request,
    for the marker if there is one. Calls may be served meanwhile.
    """

    def __init__(
        self,
        locations: Locations,
        probe: StoreProbe,
        deployment_id: str = "",
        now_s: Callable[[], float] = time.monotonic,
        *,
        marker_required: bool = False,
        checked_first: bool = False,
    ) -> None:
        """Set up the checks of all locations.

        Args:
            deployment_id: empty: write no marker.
            marker_required: the marker must exist; none is written.
            checked_first: calls wait for the first check. They wait also with a `deployment_id` or
                `marker_required`.
        """
        self._current = locations.current
        # Locations with unread markers, and the time of the next read of each.
        self._unread_at_s = dict.fromkeys(locations.others, -float("inf"))
        self._probe = probe
        self._deployment_id = deployment_id
        # Whether the current location must have its marker: it was read, written or is required.
        self._must_be_marked = marker_required
        self._checked_first = checked_first or marker_required or bool(deployment_id)
        self._now_s = now_s
        self._has_passed = False
        self._problem: RemoteStorageError | None = None
        self._report: ProbeReport | None = None
        self._has_warned = bool(deployment_id)

    def check(self) -> None:
        """Check that the current location can be used.

        A probe with a refused result runs again only after the store has been unreachable.

        Raises:
            RemoteStorageError: no such bucket; another deployment's marker in any location; no
                marker in a location that had one; a store that lacks a required capability.
            RetriableRemoteStorageError: the current location cannot be reached.
        """
        try:
            self._require_store()
        except RemoteStorageError as e:
            # The store may be replaced or repaired when it comes back.
            self._report = None
            if self._must_be_marked and not isinstance(e, RetriableRemoteStorageError):
                self._refuse_calls(e)
            raise
        if not self._has_passed:
            try:
                self._start()
            except RemoteStorageError as e:
                self._refuse_calls(e)
                raise
            self._has_passed = True

    def inspect(self) -> ProbeReport:
        """Probe the store of the current location; leave no probe objects and no marker.

        Raises:
            RemoteStorageError, RetriableRemoteStorageError: as `check`, except for missing
                capabilities.
        """
        self._require_store()
        self._require_markers()
        return self._probe.run()

    def require_open(self) -> None:
        """Check that calls may be served.

        The first call in 60 s reads the markers of other locations that could not be read before.

        Raises:
            RetriableRemoteStorageError: the check has not passed, or the store must not be used.
        """
        if self._has_passed and self._unread_at_s:
            try:
                self._require_markers_of_others()
            except RemoteStorageError as e:
                self._refuse_calls(e)
        if self._has_passed or (self._problem is None and not self._checked_first):
            return
        why = self._problem or "its store is not checked yet"
        raise RetriableRemoteStorageError(f"RSM is not ready: {why}")

    def _refuse_calls(self, problem: RemoteStorageError) -> None:
        self._problem = problem
        self._has_passed = False

    def _require_store(self) -> None:
        if self._must_be_marked:
            require_marked(self._current, self._deployment_id)
        else:
            self._current.backend.check()

    def _start(self) -> None:
        self._require_markers()
        if self._report is None:
            self._report = self._probe.run()
            _log_report(self._report)
        if self._report.refused:
            lacks = "; ".join(map(str, self._report.refused))
            raise RemoteStorageError(f"{self._report.place} cannot keep segments: {lacks}")
        if self._deployment_id and not self._must_be_marked:
            claim(self._current, self._deployment_id)
            self._must_be_marked = True

    def _require_markers(self) -> None:
        """Check that no location has another deployment's marker. Writes nothing."""
        if not self._has_warned:
            self._has_warned = True
            text = (
                "RSM_DEPLOYMENT_ID is not set: %s is not marked, and nothing keeps another "
                "deployment from using it"
            )
            _log.warning(text, self._current)
        found = read_marker(self._current)
        if found is not None:
            require_ours(self._current, found, self._deployment_id)
            self._must_be_marked = True
        self._require_markers_of_others()

    def _require_markers_of_others(self) -> None:
        """Read the markers that are due; retry an unreachable store after 60 s."""
        now_s = self._now_s()
        for location in [each for each, at_s in self._unread_at_s.items() if at_s <= now_s]:
            # Set first, so that only one of concurrent calls reads it.
            was_read_before = self._unread_at_s[location] > -float("inf")
            self._unread_at_s[location] = now_s + _READ_AGAIN_S
            try:
                self._require_marker_of_other(location)
            except RetriableRemoteStorageError as e:
                if not was_read_before:
                    text = "%s cannot be read; its marker is checked later: %s"
                    _log.warning(text, location, e)
            except RemoteStorageError:
                # Refuse the location until a check reads another marker.
                self._unread_at_s[location] = now_s
                raise
            else:
                self._unread_at_s.pop(location, None)

    def _require_marker_of_other(self, location: Location) -> None:
        try:
            found = read_marker(location)
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError as e:
            raise RemoteStorageError(f"the marker of {location} cannot be used: {e}") from e
        if found is not None:
            require_ours(location, found, self._deployment_id)


def _log_report(report: ProbeReport) -> None:
    """Log the whole report for machines, and a warning if the store lacks a capability."""
    _log.info("probed the store of location %d", report.location_id, extra=report.as_json())
    if report.degraded:
        without = "; ".join(f"{f}: {WITHOUT[f.capability]}" for f in report.degraded)
        _log.warning("%s is used though it lacks something: %s", report.place, without)
