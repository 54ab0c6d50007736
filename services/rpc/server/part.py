"""Serve a part of a service, as one of several processes: what the parent gives it and asks."""

import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import Event, Thread

from services.rpc.server.merged_metrics import own_page

STATE, PAGE = "state", "page"
"""What a parent asks, a line each; a child answers each with a line of JSON that has this key."""


@dataclass(frozen=True, slots=True)
class Part:
    """The place of a process among those that serve a port.

    Attributes:
        number: from 0 on.
        address, tokens: HOST:PORT to listen on, for certificates (or plaintext) and for tokens.
        link: the descriptor of a socket to the parent, -1 without one.
    """

    number: int = 0
    processes: int = 1
    address: str = ""
    tokens: str | None = None
    link: int = -1

    @property
    def has_parent(self) -> bool:
        return self.link >= 0

    def arguments(self) -> list[str]:
        """Return what the parent adds to the command line; `part_in` reads it."""
        return [json.dumps(asdict(self))]

    def answer_parent(self, problem: Callable[[], str], stopping: Event) -> None:
        """Answer the parent in a thread, and stop when the parent ends, however it ends.

        Args:
            problem: returns why this process is not ready; "" if it is.
        """
        link = socket.socket(fileno=self.link)

        def answer() -> None:
            with suppress(OSError), link, link.makefile("rw") as lines:
                for asked in lines:
                    page = asked.strip() == PAGE
                    lines.write(json.dumps({PAGE: own_page()} if page else {STATE: problem()}))
                    lines.write("\n")
                    lines.flush()
            stopping.set()

        Thread(target=answer, name="parent", daemon=True).start()


WHOLE = Part()
"""A process that serves alone."""


def part_in(arguments: Sequence[str]) -> Part:
    """Return the part that a parent put into the command line, or the whole."""
    return Part(**json.loads(arguments[0])) if arguments else WHOLE
