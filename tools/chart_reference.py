"""What the chart says of its values in more than one place: `python -m tools.chart_reference`.

Writes the settings that values.schema.json takes from the settings classes, the table of
helm/README.md from values.yaml and values.schema.json, and alerts and dashboard from their modules.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hatch_build import ROOT
from services.common.settings import ServiceSettings
from services.rlm.settings import RlmSettings
from services.rlmm.settings import RlmmSettings
from services.rsm.settings import RsmSettings
from tools.alerts import page, rules_yaml
from tools.dashboard import dashboard_json

SETTINGS: dict[str, type[ServiceSettings]] = {
    "rsm": RsmSettings,
    "rlmm": RlmmSettings,
    "rlm": RlmSettings,
}
_ADDRESSES = {"LISTEN_ADDRESS", "HEALTH_ADDRESS", "METRICS_ADDRESS"}
_TLS = {
    "PLAINTEXT",
    "TLS_CERTIFICATE_FILE",
    "TLS_KEY_FILE",
    "TLS_CLIENT_CA_FILE",
    "POLICY_FILE",
    "METRICS_PLAINTEXT",
}
_TOKENS = {"TOKEN_LISTEN_ADDRESS", "TOKEN_JWKS_FILE", "TOKEN_ISSUER", "TOKEN_AUDIENCE"}
SET_BY_THE_CHART = {
    "rsm": _ADDRESSES
    | _TLS
    | _TOKENS
    | {"BACKEND", "ENDPOINT", "REGION", "BUCKET", "PREFIX", "SECURE", "DEPLOYMENT_ID"}
    | {"CREDENTIALS", "ACCESS_KEY_FILE", "SECRET_KEY_FILE"},
    "rlmm": _ADDRESSES | _TLS | _TOKENS | {"DATABASE_URL", "DATABASE_PASSWORD_FILE"},
    "rlm": _ADDRESSES
    | _TLS
    | {"RSM_ADDRESS", "RLMM_ADDRESS", "LOG_DIRS"}
    | {"CONSUMER_LISTEN_ADDRESS", "CONSUMER_ADVERTISED_ADDRESS"}
    | {"REMOTE_LOG_INDEX_FILE_CACHE_DIR", "REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES"},
}
"""Settings that other values become, without their prefix."""
NOT_OFFERED = {
    "rsm": {"DIRECTORY", "ACCESS_KEY", "SECRET_KEY"},
    "rlmm": set[str](),
    "rlm": set[str](),
}
"""RSM on a file system: its replicas would need one that they share. Keys: a secret has them."""
CHART = ROOT / "helm"
_KEPT = ("description", "type", "enum", "minimum", "maximum", "pattern", "maxLength")
_SCHEMA = CHART / "values.schema.json"
_README = CHART / "README.md"
_BEGIN, _END = "<!-- values: begin -->\n", "<!-- values: end -->\n"


def _as_text(field: dict[str, Any]) -> dict[str, Any]:
    """Several values are one variable, separated by commas; a docstring is one line."""
    field["description"] = " ".join(field["description"].split())
    return field | {"type": "string"} if field.get("type") == "array" else field


def settings_definition(service: str) -> dict[str, Any]:
    """The schema of `rsm.settings` and its like: each other setting, with its own bounds."""
    skipped = SET_BY_THE_CHART[service] | NOT_OFFERED[service]
    fields = SETTINGS[service].model_json_schema()["properties"]
    return {
        "type": "object",
        "description": f"Settings of docs/reference/config.md, {service.upper()}_*.",
        "additionalProperties": False,
        "properties": {
            f"{service}_{name}".upper(): _as_text({k: field[k] for k in _KEPT if k in field})
            for name, field in fields.items()
            if name.upper() not in skipped
        },
    }


def schema() -> dict[str, Any]:
    """values.schema.json as it should be."""
    written: dict[str, Any] = json.loads(_SCHEMA.read_text())
    for service in SETTINGS:
        written["definitions"][f"{service}Settings"] = settings_definition(service)
    return written


def readme() -> str:
    """helm/README.md as it should be."""
    before, begin, rest = _README.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    lines = ["| value | default | meaning |", "|---|---|---|"]
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    described = schema()
    for path, default, meaning in _rows(described, described, defaults, ""):
        shown = json.dumps(default) if default != "" else '""'
        lines.append(f"| `{path}` | `{shown}` | {meaning} |")
    return "".join([before, begin, "\n".join(lines), "\n", end, after])


def _rows(
    root: dict[str, Any], described: dict[str, Any], default: Any, path: str
) -> Iterator[tuple[str, Any, str]]:
    """A row for each value that is not itself a map with keys of ours."""
    described = _resolved(root, described)
    properties = described.get("properties", {})
    if not isinstance(default, dict) or not default or not properties:
        yield path, default, described["description"]
        return
    for key, value in default.items():
        yield from _rows(root, properties[key], value, f"{path}.{key}" if path else key)


def _resolved(root: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    reference = described.get("$ref")
    if reference is None:
        return described
    definition: dict[str, Any] = root["definitions"][reference.removeprefix("#/definitions/")]
    return definition


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


def files() -> dict[Path, str]:
    """Each file that is written whole, and what it should be."""
    return {
        _SCHEMA: schema_text(),
        _README: readme(),
        CHART / "files" / "alerts.yaml": rules_yaml(),
        CHART / "files" / "dashboard.json": dashboard_json(),
        ROOT / "docs" / "run" / "alerts.md": page(),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
