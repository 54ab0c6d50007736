"""Decide what a sweep may delete: budgets of the plan, and the settings of topics before a wave."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.waves import Head, Key

WhyStops = Callable[[UUID], str | None]
"""A function that returns why a topic's settings forbid a further deletion; None if they do not."""
Size = tuple[int, int]
"""Segments and their bytes."""


def over_budget(heads: Iterable[Head], options: SweepOptions) -> str | None:
    """Explain why a plan exceeds --max-segments or --max-size; None if it does not."""
    segments = bytes_ = 0
    for head in heads:
        segments += head.new_segments
        bytes_ += head.new_bytes
    if segments > options.max_segments:
        return (
            f"the plan names {segments} new segments, more than "
            f"--max-segments {options.max_segments}; nothing was marked. Check the plan with a dry "
            "run, then raise the limit"
        )
    if options.max_bytes is not None and bytes_ > options.max_bytes:
        return (
            f"the plan names {bytes_} bytes of new segments, more than "
            f"--max-size {options.max_bytes}; nothing was marked. Check the plan with a dry run, "
            "then raise the limit"
        )
    return None


def topics_over_budget(
    heads: Iterable[Head], max_percent: float | None, uncounted: Mapping[Key, Size]
) -> dict[str, str]:
    """Explain by topic id which topics would lose a larger share than --max-topic-percent.

    Args:
        uncounted: of partitions whose segments the plan does not count.
    """
    if max_percent is None:
        return {}
    planned_segments, planned_bytes, all_segments, all_bytes = (Counter[str]() for _ in range(4))
    sizes = dict(uncounted)
    for head in heads:
        topic_id = head.key[1]
        planned_segments[topic_id] += head.new_segments
        planned_bytes[topic_id] += head.new_bytes
        if head.tier_segments:
            sizes[head.key] = (head.tier_segments, head.tier_bytes)
    for (_, topic_id, _), (segments, bytes_) in sizes.items():
        all_segments[topic_id] += segments
        all_bytes[topic_id] += bytes_
    refusals: dict[str, str] = {}
    for topic_id, planned in planned_segments.items():
        for what, part, whole in (
            ("segments", planned, all_segments[topic_id]),
            ("bytes", planned_bytes[topic_id], all_bytes[topic_id]),
        ):
            if part * 100 > whole * max_percent and topic_id not in refusals:
                refusals[topic_id] = (
                    f"the plan names {part} of the topic's {whole} {what}, more than "
                    f"--max-topic-percent {max_percent:g}; check the plan with a dry run, then "
                    "raise the limit"
                )
    return refusals


class Permission:
    """Say whether a partition's deletion may begin; read a topic's settings once for each wave."""

    def __init__(
        self,
        why_stops: WhyStops,
        over_budget: dict[str, str],
    ) -> None:
        self._why_stops = why_stops
        self._over_budget = over_budget
        self._known: dict[str, str | None] = {}

    def next_wave(self) -> None:
        """Read settings again when they are needed next."""
        self._known.clear()

    def refusal_of(self, head: Head) -> str | None:
        """Explain why nothing of a partition may be deleted; None if it may.

        A partition that the plan skips is not judged again: what of it is planned was marked by an
        earlier run.
        """
        if head.skipped is not None and head.new_segments == 0:
            return None
        topic_id = head.key[1]
        if topic_id not in self._known:
            why = self._over_budget.get(topic_id)
            self._known[topic_id] = why or self._why_stops(UUID(topic_id))
        return self._known[topic_id]
