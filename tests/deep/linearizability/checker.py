"""Check that a history is linearizable and that the audit trail agrees with it."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from tests.deep.linearizability.history import History, TrailEntry
from tests.deep.linearizability.operations import Changed, Record, Refused, Setting, brief
from tests.deep.linearizability.search import NotLinearizableError, Order, Search, UndecidedError


def check(history: History) -> dict[str, Order]:
    """Return an order for each partition.

    Raises:
        NotLinearizableError: there is none for some partition.
        UndecidedError: none was found within MAX_NODES.
    """
    return {
        name: check_partition(history.of(name), history.trails.get(name))
        for name in history.partitions
    }


def check_partition(records: Sequence[Record], trail: Sequence[TrailEntry] | None = None) -> Order:
    """Return an order that explains all replies and, if it is given, the audit trail.

    Raises:
        NotLinearizableError, UndecidedError: as `check` says.
    """
    if trail is None:
        return Search(records, None).order()
    revisions = [entry.event.revision for entry in trail]
    if revisions != list(range(1, len(trail) + 1)):
        raise NotLinearizableError(f"the audit trail has gaps or repeats: {revisions}")
    _check_repeat_counts(records, trail)
    try:
        return Search(records, [entry.event for entry in trail]).order()
    except NotLinearizableError as e:
        against_trail = e
    with suppress(UndecidedError):
        Search(records, None).order()  # whose message is the better one, where it raises
    raise NotLinearizableError(
        f"the replies have an order, but none that the audit trail tells: {against_trail}",
        against_trail.unexplained,
    )


def _check_repeat_counts(records: Sequence[Record], trail: Sequence[TrailEntry]) -> None:
    """A repeat counts on the event that it repeats, once; what was lost may have counted too."""
    named, applied = Counter[int](), set[int]()
    for record in records:
        if not isinstance(record.reply, Changed):
            continue
        for outcome in record.reply.outcomes:
            if isinstance(outcome, Refused) or (
                isinstance(record.operation, Setting) and not outcome.applied
            ):
                continue
            named[outcome.revision] += 1
            if outcome.applied:
                applied.add(outcome.revision)
    lost = sum(record.is_lost for record in records)
    for entry in trail:
        revision = entry.event.revision
        least = named[revision] - (revision in applied)
        if not least <= entry.repeat_count <= least + lost + 1:
            raise NotLinearizableError(
                f"revision {revision} was repeated {least} times that were answered, of {lost} "
                f"others nobody knows; the audit trail counts {entry.repeat_count}: "
                f"{brief(entry.event)}"
            )
