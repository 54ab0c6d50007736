"""Write pages of docs/reference from their sources: `make docs`."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from services.api.roles import MEANING, Role, Topics, table
from services.common import copied_bytes, reloaded_file
from services.common.console_settings import ConsoleSettings
from services.common.settings import ServiceSettings, VariableSettings
from services.rlm import metrics
from services.rlm.metrics import TOPIC_COUNTERS, TopicMetric
from services.rlm.settings import RlmSettings
from services.rlmm.database import metrics as rlmm_metrics
from services.rlmm.operations import verification_ages
from services.rlmm.reads import watch_reader, watches
from services.rlmm.settings import RlmmSettings
from services.rpc.server import access, admission, interceptor, transport
from services.rsm import direct, index_cache, mirrored, verification
from services.rsm import metrics as rsm_metrics
from services.rsm.settings import RsmSettings
from tools.commands_page import commands_markdown

_MODULES = (
    interceptor,
    access,
    admission,
    transport,
    reloaded_file,
    copied_bytes,
    direct,
    index_cache,
    mirrored,
    verification,
    rsm_metrics,
    rlmm_metrics,
    metrics,
    watches,
    watch_reader,
    verification_ages,
)
"""Those that declare metrics."""

_HEADER = """# Settings

Each service reads its settings once, from its environment. A variable with a service's prefix that
is not listed here stops the service, so that a typing mistake is never ignored.
`sediment config check FILE` checks a file of NAME=VALUE lines as the services would, and
`sediment doctor` what the settings name ([status.md](../run/status.md#what-is-wrong)). Written by
`make docs`.
"""


def config_markdown() -> str:
    """Return the whole page."""
    services: tuple[tuple[str, type[VariableSettings]], ...] = (
        ("RSM", RsmSettings),
        ("RLMM", RlmmSettings),
        ("RLM", RlmSettings),
        ("Console", ConsoleSettings),
    )
    lines = [_HEADER]
    for name, settings in services:
        lines += [f"## {name}", "", "| variable | default | meaning |", "|---|---|---|"]
        lines += [*_rows(settings), ""]
    return "\n".join(lines)


def _rows(settings: type[VariableSettings]) -> Iterator[str]:
    prefix = settings.model_config["env_prefix"]
    fields = settings.model_fields
    shared = ServiceSettings.model_fields
    for name in sorted(fields, key=lambda n: (n in shared, list(fields).index(n))):
        field = fields[name]
        meaning = f"{' '.join((field.description or '').split())}{_bounds(field)}"
        yield f"| `{prefix}{name.upper()}` | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        value = value.value
    return "" if value in (None, "", ()) or "SecretStr" in repr(value) else f"`{value}`"


def _bounds(field: FieldInfo) -> str:
    """Return a field's bounds, as in " (1 to 512)", or an empty string."""
    low = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    if low is None:
        return ""
    return f" ({low:,} or more)" if high is None else f" ({low:,} to {high:,})"


PREFIX = "sediment_"

_METRICS_HEADER = """# Metrics

Each process serves these for Prometheus at `/metrics` of its metrics address, together with the
metrics of every Python process (`python_*`, `process_*`). Written by `make docs`.

A gauge with the label `topic` is the sum over the partitions that the process leads, like Kafka's,
unless its text says otherwise; a process publishes nothing about partitions it does not lead.
Kafka's rates are `rate()` of the counters. A histogram has `_bucket`, `_sum` and `_count`.

A counter with the label `topic` exists, starting at 0, while the process leads a partition of the
topic. Anything else, such as reads of a topic that is led elsewhere, counts as `topic="(other)"`.
The sum over all topics is `sum(rate(...))`. A counter without labels counts for the whole process
and never decreases.
"""

_KAFKA_HEADER = """## Kafka's names

The metrics of tiered storage in Kafka's brokers (KIP-405, 963, 1018, 1257) and their names here.

| Kafka | here |
|---|---|"""

_KAFKA_NAME = re.compile(r"\(Kafka: ([\w-]+)\)")

_OTHERWISE_HERE = (
    (
        "RemoteLogReaderFetchRateAndTimeMs",
        "missing; `sediment_rpc_seconds` has the time of whole fetches, local ones included",
    ),
    (
        "remote-fetch-throttle-time-avg, -max; quota RLM_FETCH",
        "`sediment_rlm_remote_fetch_throttle_seconds` has number and sum; the quota's use is "
        "`rate(sediment_rlm_remote_fetch_bytes_total[1m])`",
    ),
    ("quota RLM_COPY", "`rate(sediment_rlm_copied_bytes_total[1m])`"),
    (
        "ExpiresPerSec of DelayedRemoteFetchMetrics; size of the purgatory RemoteFetch",
        "none: a read that runs out of its wait is answered without records and counted nowhere; "
        "`sediment_rlm_remote_log_reader_task_queue_size` is the number that wait for a thread, "
        "`sediment_rlm_delayed_fetches` that of fetches that wait for records",
    ),
    (
        "ExpiresPerSec of DelayedRemoteListOffsetsMetrics; size of the purgatory RemoteListOffsets",
        "none: ListOffsets does not wait in a purgatory; `sediment_rpc_seconds` has its time and "
        "number",
    ),
)

_COLUMNS = ("| metric | kind | labels | meaning |", "|---|---|---|---|")

_OF_ALL = "RSM, RLMM and RLM"
_SECTIONS = (("RSM", f"{PREFIX}rsm_"), ("RLMM", f"{PREFIX}rlmm_"), ("RLM", f"{PREFIX}rlm_"))


@dataclass(frozen=True, slots=True)
class _Declared:
    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def shown_name(self) -> str:
        """Return the name as Prometheus scrapes it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def metrics_markdown() -> str:
    """Return the whole page."""
    declared = sorted(set(_declared()), key=lambda metric: metric.name)
    lines = [_METRICS_HEADER]
    for title in (_OF_ALL, *(title for title, _ in _SECTIONS)):
        rows = [_row(metric) for metric in declared if _section(metric.name) == title]
        if rows:
            lines += [f"## {title}", "", *_COLUMNS, *rows, ""]
    return "\n".join([*lines, *_kafka_names(declared)])


def _section(name: str) -> str:
    """Return the title under which a metric stands."""
    return next((title for title, prefix in _SECTIONS if name.startswith(prefix)), _OF_ALL)


def _kafka_names(declared: Sequence[_Declared]) -> Iterator[str]:
    yield _KAFKA_HEADER
    named = [(_KAFKA_NAME.search(metric.meaning), metric.shown_name) for metric in declared]
    for kafka_name, here in sorted((found[1], here) for found, here in named if found):
        yield f"| {kafka_name} | `{here}` |"
    for kafka_name, text in _OTHERWISE_HERE:
        yield f"| {kafka_name} | {text} |"


def _row(metric: _Declared) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.shown_name}` | {metric.kind} | {labels} | {metric.meaning} |"


def _declared() -> Iterator[_Declared]:
    """Yield the metrics that these modules declare."""
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, TopicMetric):
                kind = "counter" if value in TOPIC_COUNTERS else "gauge"
                yield _Declared(value.name, kind, value.labels, value.meaning)
            elif isinstance(value, MetricWrapperBase):
                (metric,) = value.describe()
                # No public name for the labels of a metric that has no values yet.
                labels = tuple(value._labelnames)
                yield _Declared(metric.name, metric.type, labels, metric.documentation)


_ROLES_HEADER = """# Roles

Which role may call which RPC. [security.md](../run/security.md#the-policy-file) says how a policy
grants roles. Written by `make docs` from `services/api/roles.py`.

| role | for what |
|---|---|"""

_TOPICS = {
    Topics.NAMED: "those named",
    Topics.FILTER: "that of the filter; without it all",
    Topics.STORED: "that of the id",
    Topics.ALL: "all",
    Topics.NONE: "",
}


def roles_markdown() -> str:
    """Return the whole page."""
    lines = [_ROLES_HEADER, *(f"| {role} | {MEANING[role]} |" for role in Role), ""]
    lines += [
        "*Topics* are those that a grant must cover. If the roles differ by a value of",
        "the request, each value has a row.",
        "",
    ]
    heading = " | ".join(("RPC", "value", *Role, "topics"))
    for service, entries in groupby(table(), lambda entry: entry.service):
        lines += [f"## {service}", "", f"| {heading} |", "|" + "---|" * (len(Role) + 3)]
        for entry in entries:
            marks = ("yes" if role in entry.roles else "" for role in Role)
            cells = (entry.rpc, entry.value, *marks, _TOPICS[entry.topics])
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    pages = {
        "config": config_markdown,
        "metrics": metrics_markdown,
        "roles": roles_markdown,
        "commands": commands_markdown,
    }
    print(pages[sys.argv[1]]())
