"""Read a metric that this process publishes, as Prometheus would."""

import re
from collections.abc import Callable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry

_NO_LABELS: Mapping[str, str] = {}
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def published(
    name: str, labels: Mapping[str, str] = _NO_LABELS, registry: CollectorRegistry = REGISTRY
) -> float:
    """Return the value of a series by its scraped name; 0 if it does not exist yet."""
    return registry.get_sample_value(name, dict(labels)) or 0.0


def growth(*names: str) -> Callable[[], list[float]]:
    """Return a function that returns how much each of these series has grown since now.

    A name may have labels, as in `name{reason="size"}`.
    """
    before = [_value(name) for name in names]
    return lambda: [_value(name) - past for name, past in zip(names, before, strict=True)]


def _value(series: str) -> float:
    name, _, labels = series.partition("{")
    return published(name, dict(_LABEL.findall(labels)))
