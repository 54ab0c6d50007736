"""Run the first variants of a costly test in `.ci/run`, and all of them in `make test-long`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(variants: Iterable[Any], count: int = 1) -> list[Any]:
    """Mark all variants but the first `count` as long.

    Args:
        variants: values of one parameter, or what pytest.param returns.
    """
    every = list(variants)
    return every[:count] + [_long(variant) for variant in every[count:]]


def _long(variant: Any) -> Any:
    if isinstance(variant, pytest.ParameterSet):
        return pytest.param(
            *variant.values, id=variant.id, marks=[*variant.marks, pytest.mark.long]
        )
    return pytest.param(variant, marks=pytest.mark.long)
