"""Who may stream, who waits, who is refused."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

import pytest

from services.api.errors import ThrottledError
from services.rpc.server.admission import Place, Places, share_of
from tests.harness.eventually import eventually

THREADS = 4
WAITING_PER_THREAD = 2


class Held:
    """Streams that last until they are let go."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.started: list[str] = []
        self._lock = Lock()
        self._ends: dict[str, Event] = {}

    def take(self, name: str, address: str) -> Place:
        self._ends[name] = Event()
        return self.places.take(address, lambda: self._serve(name))

    def _serve(self, name: str) -> None:
        with self._lock:
            self.started.append(name)
        self._ends[name].wait(timeout=30)

    def end(self, name: str) -> None:
        self._ends[name].set()

    def end_all(self) -> None:
        for end in self._ends.values():
            end.set()

    def wait_until_started(self, *names: str) -> None:
        eventually(lambda: sorted(self.started) == sorted(names))


@pytest.fixture
def held() -> Iterator[Held]:
    with ThreadPoolExecutor(THREADS) as pool:
        held = Held(Places(pool, THREADS, WAITING_PER_THREAD, share_percent=75))
        yield held
        held.end_all()


@pytest.mark.parametrize(
    ("count", "percent", "share"),
    [(8, 75, 6), (16, 75, 12), (4, 75, 3), (2, 75, 1), (1, 75, 1), (8, 100, 8), (8, 1, 1)],
)
def test_a_share_leaves_something_to_others(count: int, percent: int, share: int) -> None:
    assert share_of(count, percent) == share


def test_one_address_never_has_all_threads(held: Held) -> None:
    for number in range(THREADS):
        held.take(f"a{number}", "a")
    held.take("b0", "b")
    held.wait_until_started("a0", "a1", "a2", "b0")
    held.end("a1")
    held.wait_until_started("a0", "a1", "a2", "b0", "a3")


def test_one_address_never_has_all_places_to_wait(held: Held) -> None:
    of_one = share_of(THREADS, 75) + share_of(THREADS * WAITING_PER_THREAD, 75)
    for number in range(of_one):
        held.take(f"a{number}", "a")
    with pytest.raises(ThrottledError, match="4 are served at once, 3 of one address"):
        held.take("one more", "a")
    held.take("b0", "b")
    held.take("b1", "b")
    eventually(lambda: "b0" in held.started)


def test_what_waits_is_served_in_its_turn_and_passes_those_who_may_not(held: Held) -> None:
    for number in range(5):
        held.take(f"a{number}", "a")
    held.take("b0", "b")
    held.take("b1", "b")
    held.wait_until_started("a0", "a1", "a2", "b0")
    held.end("b0")
    held.wait_until_started("a0", "a1", "a2", "b0", "b1")
    held.end("a0")
    eventually(lambda: held.started[-1] == "a3")


def test_there_is_a_limit_for_all_addresses_together(held: Held) -> None:
    taken = THREADS * (1 + WAITING_PER_THREAD)
    for number in range(taken):
        held.take(str(number), address=str(number))
    with pytest.raises(ThrottledError, match="come back"):
        held.take("one more", "new here")


def test_who_leaves_while_waiting_is_not_served_and_gives_the_place_back(held: Held) -> None:
    for number in range(3):
        held.take(f"a{number}", "a")
    waiting = [held.take(f"w{number}", "a") for number in range(6)]
    with pytest.raises(ThrottledError):
        held.take("refused", "a")
    held.places.withdraw(waiting[0])
    held.take("next", "a")
    held.end("a0")
    eventually(lambda: held.started[-1] == "w1")
    assert "w0" not in held.started


def test_threads_are_wanted_only_of_those_whose_end_would_help(held: Held) -> None:
    for number in range(3):
        held.take(f"a{number}", "a")
    held.take("b0", "b")
    assert not held.places.wants_thread_of("a")
    held.take("a3", "a")
    assert held.places.wants_thread_of("a")
    assert not held.places.wants_thread_of("b")
    held.take("c0", "c")
    assert held.places.wants_thread_of("b")


def test_a_stream_that_fails_gives_its_thread_back(held: Held) -> None:
    def fail() -> None:
        raise ValueError

    for _ in range(3 * THREADS):
        done = Event()
        held.places.take("a", fail)
        held.places.take("a", done.set)
        assert done.wait(timeout=10)
