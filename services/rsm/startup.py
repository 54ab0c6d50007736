"""Check that the store is there, is ours and can do what RSM needs, before and while RSM serves."""

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
    """Refuse calls until `check` has passed once.

    `check` is for one thread at a time, which calls it again and again: it then makes one request,
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
        """Without a `deployment_id`, or with `marker_required`, no marker is written. With
        `checked_first`, a `deployment_id` or `marker_required`, calls wait for the first check."""
        self._current = locations.current
        # Locations whose markers are still to be read, and when.
        self._unread_at_s = dict.fromkeys(locations.others, -float("inf"))
        self._probe = probe
        self._deployment_id = deployment_id
        # Whether the current location must have its marker: it was seen, written or is required.
        self._must_be_marked = marker_required
        self._checked_first = checked_first or marker_required or bool(deployment_id)
        self._now_s = now_s
        self._has_passed = False
        self._problem: RemoteStorageError | None = None
        self._report: ProbeReport | None = None
        self._has_warned = bool(deployment_id)

    def check(self) -> None:
        """Return if the current location can be used. A probe that was refused is run again only
        after the store has been away.

        Raises:
            RemoteStorageError: no such bucket; another deployment's marker in any location; no
                marker in a location that had one; a store that lacks what RSM needs.
            RetriableRemoteStorageError: the current location cannot be reached.
        """
        try:
            self._require_store()
        except RemoteStorageError as e:
            # What comes back may be another store, or a mended one.
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
        """Probe the store of the current location. Leaves nothing behind, and no marker.

        Raises:
            RemoteStorageError, RetriableRemoteStorageError: as `check`, but for what it lacks.
        """
        self._require_store()
        self._require_markers()
        return self._probe.run()

    def require_open(self) -> None:
        """Return if calls may be served.

        The first call in 60 s reads the markers of other locations that could not be read before.

        Raises:
            RetriableRemoteStorageError: not yet, or not with this store.
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
        """Return if no location has another deployment's marker. Writes nothing."""
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
        """Read the markers that are due. A store that is away is tried again after 60 s."""
        now_s = self._now_s()
        for location in [each for each, at_s in self._unread_at_s.items() if at_s <= now_s]:
            # First, so that of many calls one reads it.
            was_read_before = self._unread_at_s[location] > -float("inf")
            self._unread_at_s[location] = now_s + _READ_AGAIN_S
            try:
                self._require_marker_of_other(location)
            except RetriableRemoteStorageError as e:
                if not was_read_before:
                    text = "%s cannot be read; its marker is checked later: %s"
                    _log.warning(text, location, e)
            except RemoteStorageError:
                # It is another deployment's until a check has read otherwise.
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
    """Log one line with all of it for machines, and one with what the store lacks."""
    _log.info("probed the store of location %d", report.location_id, extra=report.as_json())
    if report.degraded:
        without = "; ".join(f"{f}: {WITHOUT[f.capability]}" for f in report.degraded)
        _log.warning("%s is used though it lacks something: %s", report.place, without)
