"""Ports for processes that nobody starts again should another one take their port meanwhile."""

import os

_MOST_WORKERS = 16


def own_ports() -> range:
    """Candidates for `free_ports` that no other test process of this run looks at, nor whatever is
    started on ports of its own choice."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return range(3_000 + worker % _MOST_WORKERS, 10_000, _MOST_WORKERS)
