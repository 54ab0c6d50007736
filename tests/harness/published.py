"""Read a metric that this process publishes, as Prometheus would."""

from collections.abc import Mapping

from prometheus_client import REGISTRY, CollectorRegistry

_NO_LABELS: Mapping[str, str] = {}


def published(
    name: str, labels: Mapping[str, str] = _NO_LABELS, registry: CollectorRegistry = REGISTRY
) -> float:
    """Return the value of a series by its scraped name; 0 if it does not exist yet."""
    return registry.get_sample_value(name, dict(labels)) or 0.0
