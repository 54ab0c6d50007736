"""Check before RSM serves that the store is there, is ours and can do what RSM needs."""

import logging
import threading
import time
from collections.abc import Callable

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rsm.locations import Location, Locations
from services.rsm.marker import claim, read_marker, require_marked, require_ours
from services.rsm.probe import WITHOUT, ProbeReport, StoreProbe

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0
_READ_AGAIN_S = 60.0
_NOT_READ_YET = -float("inf")
_log = logging.getLogger(__name__)


class StartUp:
    """Holds RSM back until markers and probe have passed once; after that only asks whether the
    store is there, with the marker that it had, and reads the markers that could not be read
    before. Calls may be served meanwhile; `check` is for one thread at a time."""

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
        """`deployment_id` is empty where none is set: then no marker is written. Where a marker is
        required it is never written. With `checked_first` no call is served before `check` has
        passed, as it is anyhow where there is a deployment id or must be a marker."""
        self._current = locations.current
        # Those whose markers were not read yet, and when to read them.
        self._unread_at_s = dict.fromkeys(locations.others, _NOT_READ_YET)
        self._reader: threading.Thread | None = None
        self._refused_later: RemoteStorageError | None = None
        self._probe = probe
        self._deployment_id = deployment_id
        # From when on the current location must have its marker: it was seen or written.
        self._must_be_marked = marker_required
        self._checked_first = checked_first
        self._now_s = now_s
        self._has_warned = False
        self._has_passed = False
        self._trouble: RemoteStorageError | None = None
        self._report: ProbeReport | None = None
        self._cut_off: RetriableRemoteStorageError | None = None
        self._probe_at_s = -float("inf")
        self._pause_s = _FIRST_PAUSE_S

    def check(self) -> None:
        """Return if the current location can be used, else raise why not. Once it has passed, one
        request. A location that had its marker and has it no more is refused until it is back.

        A probe runs to its end once. It runs again where it was refused and the store has been
        away since, or where it was cut off, after pauses that grow until it ends.

        Raises:
            RemoteStorageError: no such bucket; another's marker in any location; none where there
                was one; a store that lacks what RSM needs.
            RetriableRemoteStorageError: the current location cannot be reached.
        """
        try:
            self._require_store()
        except RemoteStorageError as e:
            # What comes back may be another store, or a mended one.
            self._report = None
            if self._must_be_marked and not isinstance(e, RetriableRemoteStorageError):
                self._trouble = e
                self._has_passed = False
            raise
        try:
            if self._has_passed:
                self._read_passed_over()
                return
            self.require_markers()
            self._require_capabilities()
            if self._deployment_id and not self._must_be_marked:
                claim(self._current, self._deployment_id)
                self._must_be_marked = True
        except RemoteStorageError as e:
            self._trouble = e
            self._has_passed = False
            raise
        self._has_passed = True

    def inspect(self) -> ProbeReport:
        """What the store of the current location can do. Leaves nothing behind, and no marker.

        Raises:
            RemoteStorageError, RetriableRemoteStorageError: as `check`, but for what it lacks.
        """
        self._require_store()
        self.require_markers()
        return self._probe.run()

    def _require_store(self) -> None:
        if self._must_be_marked:
            require_marked(self._current, self._deployment_id)
        else:
            self._current.backend.check()

    def require_open(self) -> None:
        """Return if calls may be served: `check` has passed, or has found nothing against it yet
        and is not waited for.

        Raises:
            RetriableRemoteStorageError: not yet, or not with this store.
        """
        waits = self._checked_first or bool(self._deployment_id) or self._must_be_marked
        if self._has_passed or (self._trouble is None and not waits):
            return
        why = self._trouble or "its store is not checked yet"
        raise RetriableRemoteStorageError(f"RSM is not ready: {why}")

    def require_markers(self) -> None:
        """Return if no location has another's marker. Writes nothing.

        A location that is not the current one and whose store does not answer now is passed over,
        and told of: the current one can be used without it. It is read again after a minute.
        """
        if not self._deployment_id and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "RSM_DEPLOYMENT_ID is not set: %s is not marked, and nothing keeps another "
                "deployment from using it",
                self._current,
            )
        found = read_marker(self._current)
        if found is not None:
            require_ours(self._current, found, self._deployment_id)
            self._must_be_marked = True
        self._require_markers_of_others()

    def _require_markers_of_others(self) -> None:
        for location in self._due():
            try:
                self._require_marker_of_other(location)
                del self._unread_at_s[location]
            except RetriableRemoteStorageError as e:
                if self._unread_at_s[location] == _NOT_READ_YET:
                    text = "%s cannot be read now, its marker is not checked: %s"
                    _log.warning(text, location, e)
                self._unread_at_s[location] = self._now_s() + _READ_AGAIN_S

    def _require_marker_of_other(self, location: Location) -> None:
        try:
            found = read_marker(location)
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError as e:
            raise RemoteStorageError(f"the marker of {location} cannot be used: {e}") from e
        if found is not None:
            require_ours(location, found, self._deployment_id)

    def _due(self) -> list[Location]:
        now_s = self._now_s()
        return [location for location, at_s in self._unread_at_s.items() if at_s <= now_s]

    def _read_passed_over(self) -> None:
        """Read the markers that could not be read before, in a thread apart: a store that is away
        lets one wait, which says nothing of the current one. Raises what the last reading found."""
        if self._reader is not None and self._reader.is_alive():
            return
        refused, self._refused_later = self._refused_later, None
        if refused is not None:
            raise refused
        if self._due():
            self._reader = threading.Thread(target=self._read_apart, name="markers", daemon=True)
            self._reader.start()

    def _read_apart(self) -> None:
        try:
            self._require_markers_of_others()
        except RemoteStorageError as e:
            self._refused_later = e

    def _require_capabilities(self) -> None:
        if self._report is None:
            self._report = self._run_probe()
        refuse(self._report)

    def _run_probe(self) -> ProbeReport:
        if self._cut_off is not None and self._now_s() < self._probe_at_s:
            raise self._cut_off
        try:
            report = self._probe.run()
        except RetriableRemoteStorageError as e:
            self._cut_off = e
            self._probe_at_s = self._now_s() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            raise
        self._cut_off, self._pause_s = None, _FIRST_PAUSE_S
        tell(report)
        return report


def tell(report: ProbeReport) -> None:
    """One line with all of it, for machines, and one with what RSM has to do without."""
    _log.info("probed the store of location %d", report.location_id, extra=report.as_json())
    if report.degraded:
        without = "; ".join(f"{f}: {WITHOUT[f.capability]}" for f in report.degraded)
        _log.warning("%s is used though it lacks something: %s", report.place, without)


def refuse(report: ProbeReport) -> None:
    """Raise RemoteStorageError if the store lacks what RSM cannot do without."""
    if report.refused:
        lacks = "; ".join(map(str, report.refused))
        raise RemoteStorageError(f"{report.place} cannot keep segments: {lacks}")
