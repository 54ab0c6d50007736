"""Read all pages of a list."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Concatenate, ParamSpec, Protocol, TypeVar

M = TypeVar("M")
P = ParamSpec("P")
PageT = TypeVar("PageT", bound="Page")
T = TypeVar("T")


class Page(Protocol):
    """A page; its `next_page_token` is empty if it is the last one."""

    @property
    def next_page_token(self) -> str: ...


def every_page(read: Callable[..., PageT]) -> Iterator[PageT]:
    """Yield each page, one in memory at a time; an empty token is that of the first page."""
    token = ""
    while True:
        page = read(page_token=token)
        yield page
        token = page.next_page_token
        if not token:
            return


def every_item(
    method: Callable[Concatenate[M, P], PageT], items_of: Callable[[PageT], Iterable[T]]
) -> Callable[Concatenate[M, P], Iterator[T]]:
    """Return a function that yields the items of all pages of a list, one page in memory at a time.

    Args:
        method: of a contract; reads a page. The function has its arguments, but for the token.
    """
    name = method.__name__

    def items(manager: M, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        for page in every_page(partial(getattr(manager, name), *args, **kwargs)):
            yield from items_of(page)

    return items
