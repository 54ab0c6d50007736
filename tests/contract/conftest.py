"""Mark what `make test` leaves out of the suites that cross the wire."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as deep what a suite runs across the wire beside one case for each RPC."""
    for item in items:
        cases = getattr(getattr(item, "cls", None), "wire_cases", None)
        if cases is not None and getattr(item, "originalname", "") not in cases.values():
            item.add_marker("deep")
