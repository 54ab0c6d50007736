"""Read the JMX exporter's rules and the alerts of docs/kafka-plugin.md; apply the rules."""

import re
from pathlib import Path
from typing import Any

import yaml

_PAGE = Path(__file__).parents[2] / "docs" / "kafka-plugin.md"
_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def broker_alerts() -> dict[str, Any]:
    """Return the alerts, as a file of Prometheus rules."""
    return _block("groups")


def exported_name(object_name: str, attribute: str) -> str | None:
    """Name the metric that the exporter makes of an attribute; None if it makes none."""
    configuration = _block("rules")
    assert configuration["lowercaseOutputName"]
    domain, _, properties = object_name.partition(":")
    subject = f"{domain}<{properties.replace(',', ', ')}><>{attribute}"
    for rule in configuration["rules"]:
        match = re.fullmatch(rule["pattern"], subject)
        if match is not None:
            return match.expand(rule["name"].replace("$", "\\")).lower()
    return None


def _block(key: str) -> dict[str, Any]:
    blocks = [yaml.safe_load(text) for text in _BLOCK.findall(_PAGE.read_text())]
    (found,) = (block for block in blocks if key in block)
    return dict(found)
