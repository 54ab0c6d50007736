"""Merge the metrics of the processes of a service into one page."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

Sample: TypeAlias = tuple[str, Mapping[str, str], float]
Family: TypeAlias = tuple[str, str, str, list[Sample]]
"""Name, description, type and samples of a metric; JSON holds all of it."""

Page: TypeAlias = list[Family]

GAUGES: Mapping[str, Callable[[Iterable[float]], float]] = {
    "process_max_fds": min,
    "process_open_fds": sum,
    "process_resident_memory_bytes": sum,
    "process_start_time_seconds": min,
    "process_virtual_memory_bytes": sum,
    "python_info": max,
    "sediment_plaintext": max,
    # Those of files and successes are the oldest: a process that lags behind must show.
    "sediment_reloaded_file_loaded_timestamp_seconds": min,
    "sediment_rlmm_database_connections_in_use": sum,
    "sediment_rlmm_database_connections_limit": sum,
    "sediment_rlmm_database_last_success_timestamp_seconds": min,
    # Those of the database are published by the first process; the others have 0 or none.
    "sediment_rlmm_last_maintenance_timestamp_seconds": max,
    "sediment_rlmm_oldest_trim_report_timestamp_seconds": max,
    "sediment_rlmm_oldest_verification_timestamp_seconds": max,
    "sediment_rlmm_unverified_topics": max,
    "sediment_rlmm_watches": sum,
    "sediment_rpc_calls_in_progress": sum,
    "sediment_rpc_calls_limit": sum,
    "sediment_rpc_calls_waiting": sum,
    "sediment_rsm_part_buffers_in_use": sum,
    "sediment_rsm_part_buffers_limit": sum,
    "sediment_rsm_part_buffers_waiting": sum,
    "sediment_rsm_store_last_success_timestamp_seconds": min,
    "sediment_tls_certificate_expiry_timestamp_seconds": min,
}
"""How a gauge of the service follows from those of its processes. Counters and histograms are
summed."""

_SUMMED = ("counter", "histogram")


def own_page(prefix: str = "") -> Page:
    """Return the metrics of this process whose names begin with a prefix."""
    return [
        (family.name, family.documentation, family.type, _samples(family))
        for family in REGISTRY.collect()
        if family.name.startswith(prefix)
    ]


def _samples(family: Metric) -> list[Sample]:
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


def counted(page: Page) -> Page:
    """Return what must stay of the page of a process that has ended: counts never fall."""
    return [family for family in page if family[2] in _SUMMED]


def merged(pages: Iterable[Page]) -> Page:
    """Return one page of several processes."""
    families: dict[str, tuple[str, str, dict[Any, list[float]]]] = {}
    for page in pages:
        for name, text, kind, samples in page:
            values = families.setdefault(name, (text, kind, {}))[2]
            for sample, labels, value in samples:
                values.setdefault((sample, tuple(labels.items())), []).append(value)
    return [
        (
            name,
            text,
            kind,
            [(s, dict(labels), _rule(name, kind, s)(v)) for (s, labels), v in of.items()],
        )
        for name, (text, kind, of) in families.items()
    ]


def _rule(name: str, kind: str, sample: str) -> Callable[[Iterable[float]], float]:
    if sample.endswith("_created"):
        return min
    return sum if kind in _SUMMED else GAUGES.get(name, max)


class Merged(Collector):
    """The metrics of a service, as a registry collects them."""

    def __init__(self, page: Callable[[], Page]) -> None:
        self._page = page

    def collect(self) -> Iterator[Metric]:
        for name, text, kind, samples in self._page():
            family = Metric(name, text, kind)
            for sample, labels, value in samples:
                family.add_sample(sample, dict(labels), value)
            yield family
