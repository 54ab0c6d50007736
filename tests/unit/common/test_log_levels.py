"""Test that libraries do not write log lines of their own."""

import logging

import pytest

from services.common.log import configure_logging


@pytest.mark.parametrize("name", ["kafka", "kafka.net.transport"])
def test_kafka_python_writes_no_line_at_any_level_of_ours(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At DEBUG it logs passwords, and it logs each unavailable broker as an error."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    try:
        configure_logging("DEBUG")
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)
    finally:
        root.setLevel(before)
