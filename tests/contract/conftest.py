"""Mark the tests over gRPC that `make test` leaves out."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a suite's tests over gRPC as deep, except for one case for each RPC."""
    for item in items:
        cases = getattr(getattr(item, "cls", None), "wire_cases", None)
        if cases is not None and getattr(item, "originalname", "") not in cases.values():
            item.add_marker("deep")
