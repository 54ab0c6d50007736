"""Provide a clock that advances only by the pauses that are made on it."""

from services.rsm.active_copies import Waiter


class MovedClock:
    """A clock whose `waiter` takes no time; a test adds up the time that it would have taken."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waiter = Waiter(lambda: self.now_s, self.move)

    def move(self, seconds: float) -> None:
        self.now_s += seconds
