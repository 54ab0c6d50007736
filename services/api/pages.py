"""Read all pages of a list."""

from collections.abc import Iterator
from typing import Protocol, TypeVar


class Page(Protocol):
    """A page; its `next_page_token` is empty if it is the last one."""

    @property
    def next_page_token(self) -> str: ...


P = TypeVar("P", bound=Page)
P_co = TypeVar("P_co", bound=Page, covariant=True)


class ReadPage(Protocol[P_co]):
    """A method that reads a page of a list; an empty token is that of the first page."""

    def __call__(self, *, page_token: str) -> P_co: ...


def every_page(read: ReadPage[P]) -> Iterator[P]:
    """Yield each page, one in memory at a time."""
    token = ""
    while True:
        page = read(page_token=token)
        yield page
        token = page.next_page_token
        if not token:
            return
