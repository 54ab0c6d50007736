"""Check that a history is linearizable and that the audit trail agrees with it."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from tests.deep.histories.history import History, Record, TrailEntry
from tests.deep.histories.operations import (
    RaiseLogStart,
    ResetLeaderEpoch,
    Undelete,
    changes_in,
)
from tests.deep.histories.search import NotLinearizableError, Order, Search, UndecidedError

SETTINGS = Undelete | RaiseLogStart | ResetLeaderEpoch
"""These lead to a state that may be there already; then no event in particular is repeated, and the
present revision is answered."""


def check(history: History) -> dict[int, Order]:
    """Return an order for each partition that explains all replies and its audit trail, if any.

    Raises:
        NotLinearizableError: there is none for some partition.
        UndecidedError: none was found within MAX_NODES.
    """
    return {tp: _order(history, tp) for tp in history.partitions}


def _order(history: History, tp: int) -> Order:
    records, trail = history.of(tp), history.trails.get(tp)
    search = partial(Search, history.space, records, history.holds)
    if trail is None:
        return search(None).order()
    revisions = [entry.event.revision for entry in trail]
    if revisions != list(range(1, len(trail) + 1)):
        raise NotLinearizableError(f"the audit trail has gaps or repeats: {revisions}")
    _check_repeat_counts(records, trail)
    try:
        return search([entry.event for entry in trail]).order()
    except NotLinearizableError as e:
        against_trail = e
    with suppress(UndecidedError):
        search(None).order()  # whose message is the better one, if it raises
    raise NotLinearizableError(
        f"the replies have an order, but none that the audit trail tells: {against_trail}",
        against_trail.unexplained,
    )


def _check_repeat_counts(records: Sequence[Record], trail: Sequence[TrailEntry]) -> None:
    """A repeat counts on the event that it repeats, once; what was lost may have counted too."""
    named, applied = Counter[int](), set[int]()
    for record in records:
        for outcome in changes_in(record.reply):
            if outcome.applied or not isinstance(record.operation, SETTINGS):
                named[outcome.revision] += 1
            if outcome.applied:
                applied.add(outcome.revision)
    lost = sum(record.is_lost for record in records)
    for entry in trail:
        revision = entry.event.revision
        least = named[revision] - (revision in applied)
        if not least <= entry.repeat_count <= least + lost + 1:
            raise NotLinearizableError(
                f"revision {revision} was repeated {least} times that were answered, and {lost} "
                f"replies were lost; the audit trail counts {entry.repeat_count}: "
                f"{entry.event}"
            )
