"""Test the size of a read's chunks, on a clock that only the store moves."""

from services.rsm.backends.protocol import CHUNK_BYTES, FIRST_CHUNK_BYTES, read_chunks
from tests.harness.clocks import Clock

MIB = 1024 * 1024


class Store:
    """Gives what it is asked for, at a rate that a test may change."""

    def __init__(self, rate_bytes_per_s: float) -> None:
        self.rate_bytes_per_s = rate_bytes_per_s
        self.clock = Clock()
        self.took_s: list[float] = []

    def read(self, most: int) -> bytes:
        self.took_s.append(most / self.rate_bytes_per_s)
        self.clock.move(self.took_s[-1])
        return bytes(most)

    def chunks(self, size_bytes: int) -> list[int]:
        return [
            len(chunk)
            for chunk in read_chunks(self.read, size_bytes, "what", lambda: self.clock.now_s)
        ]


def test_after_three_small_chunks_all_are_large() -> None:
    sizes = Store(MIB).chunks(3 * MIB)
    small = [FIRST_CHUNK_BYTES, 64 * 1024, 256 * 1024]
    assert sizes == [*small, CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES - sum(small)]


def test_of_a_store_that_drips_no_chunk_takes_longer_than_some_seconds() -> None:
    for rate in (100, 10_000, 100_000):
        store = Store(rate)
        assert sum(store.chunks(MIB)) == MIB
        assert max(store.took_s[1:]) < 3


def test_briefly_slow_read_returns_to_large_chunks() -> None:
    store = Store(1000)
    sizes = []
    for chunk in read_chunks(store.read, 4 * MIB, "what", lambda: store.clock.now_s):
        sizes.append(len(chunk))
        store.rate_bytes_per_s = 100 * MIB
    assert sizes[1] < FIRST_CHUNK_BYTES
    assert set(sizes[3:-1]) == {CHUNK_BYTES}
