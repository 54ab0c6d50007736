"""docs/config.md, written from the settings classes: `make docs`."""

from collections.abc import Iterator
from enum import Enum

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from services.rlm.settings import RlmSettings
from services.rlmm.settings import RlmmSettings
from services.rpc.settings import ServiceSettings
from services.rsm.settings import RsmSettings

_HEADER = """# Settings

Each service reads its settings once, from its environment. A variable with a service's prefix that
is not listed here stops the service: a typing mistake never passes for a default. Written by
`make docs`.
"""


def config_markdown() -> str:
    """The whole page."""
    services = (("RSM", RsmSettings), ("RLMM", RlmmSettings), ("RLM", RlmSettings))
    lines = [_HEADER]
    for name, settings in services:
        lines += [f"## {name}", "", "| variable | default | meaning |", "|---|---|---|"]
        lines += [*_rows(settings), ""]
    return "\n".join(lines)


def _rows(settings: type[ServiceSettings]) -> Iterator[str]:
    prefix = settings.model_config["env_prefix"]
    fields = settings.model_fields
    shared = ServiceSettings.model_fields
    for name in sorted(fields, key=lambda n: (n in shared, list(fields).index(n))):
        field = fields[name]
        meaning = f"{field.description}{_bounds(field)}"
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
    """ " (1 to 512)", where the field has bounds."""
    low = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    if low is None:
        return ""
    return f" ({low:,} or more)" if high is None else f" ({low:,} to {high:,})"


if __name__ == "__main__":
    print(config_markdown())
