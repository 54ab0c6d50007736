"""Raise the errors of a data source as one line: Spark shows a Python traceback above it else."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction, isgeneratorfunction
from typing import Any, TypeVar

from services.api.errors import RemoteStorageError

_OF_WORKER = "PYTHON_WORKER_FACTORY_"
_HIDES_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Variables of Spark's Python workers, each of which ends after an error."""

T = TypeVar("T")


def one_line_errors(source: type[T]) -> type[T]:
    """Wrap the public methods of a class that Spark calls; defects of ours keep their traceback."""
    for name, method in [*vars(source).items()]:
        if isfunction(method) and not name.startswith("_"):
            setattr(source, name, _wrapped(method))
    return source


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with _without_traceback():
            return method(*arguments, **named)

    @wraps(method)
    def generate(*arguments: Any, **named: Any) -> Iterator[Any]:
        with _without_traceback():
            yield from method(*arguments, **named)

    return generate if isgeneratorfunction(method) else call


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except RemoteStorageError:
        if any(name.startswith(_OF_WORKER) for name in os.environ):
            os.environ[_HIDES_TRACEBACK] = "1"
        raise
