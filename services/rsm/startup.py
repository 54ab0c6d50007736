"""Refuse calls until the store is known to be this deployment's, and able to store segments."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.deadline import at_most
from services.rsm.locations import Location, Locations
from services.rsm.marker import WrittenLocation, marker_key, require_ours
from services.rsm.probe import ProbeReport, RuleLevel, StoreProbe, StoreRule

_READ_AGAIN_S = 60.0
_READ_MATCHED_AGAIN_S = 1.0
_REACHABLE_S = 2.0
"""How long a check may wait for a store of which only some topics need copies."""

_READ_RULES_AGAIN_S = 3600.0
_OF_EACH_CALL = (StoreNotFoundError, StoreAccessDeniedError)
_log = logging.getLogger(__name__)


class StartUp:
    """Refuses calls until `check` has passed once, and while it finds that RSM must not serve.

    One thread at a time may call `check`, repeatedly. Calls may be served meanwhile.
    """

    def __init__(
        self,
        locations: Locations,
        probe_of: Callable[[Location], StoreProbe],
        deployment_id: str = "",
        now_s: Callable[[], float] = time.monotonic,
        read_rules: Callable[[], Sequence[StoreRule]] = tuple,
        *,
        marker_required: bool = False,
        checked_first: bool = False,
    ) -> None:
        """Set up the checks of all locations.

        Args:
            probe_of: returns the probe of a location that is written.
            deployment_id: empty: write no marker.
            read_rules: reads what the stores do by themselves; raises no error of a store.
            marker_required: the marker must exist; none is written.
            checked_first: calls wait for the first check. They wait also with a `deployment_id` or
                `marker_required`.
        """
        current, *matched = (
            WrittenLocation(each, probe_of(each), deployment_id, marker_required=marker_required)
            for each in locations.written
        )
        self._current = current
        self._locations = locations
        self._deployment_id = deployment_id
        self._now_s = now_s
        self._read_rules = read_rules
        self._rules: Sequence[StoreRule] = ()
        self._read_rules_at_s = 0.0
        self._is_started = False
        # Why calls are refused; None if they are served.
        self._problem: str | None = None
        if checked_first or marker_required or deployment_id:
            self._problem = "its store is not checked yet"
        problem = self._problem or ""
        self._matched = {each.location: _MatchedState(each, problem) for each in matched}
        # Other locations whose markers are unread, in order; the values mean nothing.
        self._unread = dict.fromkeys(locations.others)
        self._read_again_at_s = 0.0

    @property
    def deployment_id(self) -> str:
        """Return the deployment's id; empty if this process has none."""
        return self._deployment_id

    @property
    def rules(self) -> Sequence[StoreRule]:
        """Return what the stores do by themselves, as of the last hour; empty before a check.

        Before them come the locations that do not answer, or to which nothing is copied now.
        """
        refused = [
            StoreRule(RuleLevel.CRITICAL, f"{location}: copies wait: {state.problem}")
            for location, state in self._matched.items()
            if self._is_started and state.problem
        ]
        away = [
            StoreRule(
                RuleLevel.CRITICAL,
                f"{each} does not answer: reads are served by its mirror, copies and deletions "
                f"wait: {each.mirrored.failover.error}",
            )
            for each in self._locations.all
            if each.mirrored is not None and each.is_away
        ]
        return [*away, *refused, *self._rules]

    def check(self) -> None:
        """Check that the current location can be used; one request once this has passed.

        Prepares the others that are written, too, but does not fail for them: copies to them do.
        Every hour the rules of the stores are read.

        Raises:
            RemoteStorageError: no such bucket; another deployment's marker in any location; no
                marker in a location that had one; a store that lacks a required capability.
            RetriableRemoteStorageError: the current location cannot be reached.
        """
        try:
            self._current.require_marker()
            if not self._is_started:
                self._require_unread_markers()
                if not self._current.location.is_away:
                    self._current.prepare()
                    self._is_started = True
                self._problem = None
            self._check_matched()
            if not self._current.location.is_away:
                self._refresh_rules()
        except RetriableRemoteStorageError:
            self._current.forget()
            raise
        except RemoteStorageError as e:
            # If no marker can be missed, each call meets the store's own error.
            if self._current.must_be_marked or not isinstance(e, _OF_EACH_CALL):
                self._refuse_calls(e)
            raise

    def inspect(self) -> ProbeReport:
        """Probe the store of the current location; leave no probe objects and no marker.

        Raises:
            RemoteStorageError, RetriableRemoteStorageError: as `check`, except for missing
                capabilities.
        """
        self._current.require_marker()
        self._require_unread_markers()
        return replace(self._current.inspect(), rules=tuple(self._read_rules()))

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

    def require_written(self, location: Location) -> None:
        """Check that segments may be copied to a location.

        The first call in a second reads the marker of a location other than the current one.

        Raises:
            RetriableRemoteStorageError: as require_open, or the location is not prepared.
        """
        self.require_open()
        state = self._matched.get(location)
        if state is None:
            return
        if state.is_prepared and self._now_s() >= state.check_again_at_s:
            state.check_again_at_s = self._now_s() + _READ_MATCHED_AGAIN_S
            try:
                state.place.require_marker()
            except RetriableRemoteStorageError:
                raise
            except RemoteStorageError as e:
                state.refuse(e, self._now_s())
        if state.problem:
            raise RetriableRemoteStorageError(f"RSM is not ready for {location}: {state.problem}")

    def _check_matched(self) -> None:
        """Prepare the locations that are not, each at most once in 60 s."""
        for state in self._matched.values():
            if state.is_prepared or self._now_s() < state.check_again_at_s:
                continue
            try:
                with at_most(_REACHABLE_S):
                    state.place.require_marker()
                state.place.prepare()
                state.problem, state.is_prepared, state.check_again_at_s = "", True, 0.0
            except RemoteStorageError as e:
                state.place.forget()
                state.refuse(e, self._now_s())

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

    def _require_unread_markers(self) -> None:
        """Check that no other location has another deployment's marker.

        The marker of a location that cannot be reached stays unread.
        """
        # Set first, so that only one of concurrent calls reads them.
        self._read_again_at_s = self._now_s() + _READ_AGAIN_S
        for location in tuple(self._unread):
            data = None
            try:
                data = location.backend.get(marker_key(location))
            except RemoteResourceNotFoundError:
                pass
            except RetriableRemoteStorageError as e:
                text = "%s cannot be read; its marker is checked in %.0f s: %s"
                _log.warning(text, location, _READ_AGAIN_S, e)
                continue
            except RemoteStorageError as e:
                raise RemoteStorageError(f"the marker of {location} cannot be used: {e}") from e
            if data is not None:
                require_ours(location, data, self._deployment_id)
            self._unread.pop(location, None)


class _MatchedState:
    """Whether a location that only some topics match can be copied to.

    Attributes:
        problem: why not; empty if it can.
        is_prepared: it was probed and marked since it could not be used.
    """

    def __init__(self, place: WrittenLocation, problem: str) -> None:
        self.place = place
        self.problem = problem
        self.is_prepared = False
        self.check_again_at_s = 0.0

    def refuse(self, error: RemoteStorageError, now_s: float) -> None:
        if str(error) != self.problem:
            _log.warning("%s takes no copies: %s", self.place.location, error)
        self.problem, self.is_prepared = str(error), False
        self.check_again_at_s = now_s + _READ_AGAIN_S
