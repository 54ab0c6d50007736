"""Provide ports for processes that no test restarts if another process takes their port."""

import os

_MOST_WORKERS = 16


def own_ports() -> range:
    """Return candidates for `free_ports` that no other test process of this run uses.

    Servers that choose their own ports do not use them either.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return range(3_000 + worker % _MOST_WORKERS, 10_000, _MOST_WORKERS)
