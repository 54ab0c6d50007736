"""Wrap a real object, to change some of its methods."""

from collections import Counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Wrapper(Generic[T]):
    """The real object, except for what a subclass defines.

    Attributes:
        real: the object; a test may exchange it for another.
    """

    def __init__(self, real: T) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Counted(Wrapper[T]):
    """The real object, with the number of times that each method was called.

    Attributes:
        calls: by the method's name.
    """

    def __init__(self, real: T) -> None:
        super().__init__(real)
        self.calls = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.real, name)
