"""What lies in the cache's directory, by last use. Pure book-keeping; not thread-safe."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

BLOCK_BYTES = 4096
MAX_FILES = 65_536
"""Of each, some 300 bytes of memory are needed."""
LOT_FILES = 64


def charged_bytes(size_bytes: int) -> int:
    """What a file counts: whole blocks, at least one."""
    return max(-(-size_bytes // BLOCK_BYTES), 1) * BLOCK_BYTES


@dataclass(slots=True)
class HeldFile:
    """
    Attributes:
        charged_bytes: its size, as it is charged.
        used_s: its last use.
    """

    name: str
    charged_bytes: int
    used_s: float


class HeldFiles:
    """
    Attributes:
        total_bytes: as charged.
    """

    def __init__(self) -> None:
        # The least recently used is the first.
        self._files: OrderedDict[str, HeldFile] = OrderedDict()
        self.total_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __len__(self) -> int:
        return len(self._files)

    def add(self, name: str, size_bytes: int, used_s: float) -> None:
        """A file that is used later than those that are here."""
        self.take(name)
        self._add(HeldFile(name, charged_bytes(size_bytes), used_s))

    def add_found(self, found: Iterable[tuple[str, int, float]]) -> None:
        """What an earlier process left: name, size and last use of each file. What was used since
        is here already, and stays as it is."""
        for name, size_bytes, used_s in sorted(found, key=lambda file: file[2], reverse=True):
            if name not in self._files:
                self._add(HeldFile(name, charged_bytes(size_bytes), used_s))
                self._files.move_to_end(name, last=False)

    def use(self, name: str, now_s: float) -> bool:
        """It is used now; False: it is not here."""
        file = self._files.get(name)
        if file is None:
            return False
        self._files.move_to_end(name)
        file.used_s = now_s
        return True

    def used_since(self, since_s: float) -> list[tuple[str, float]]:
        """Name and last use of those that were used since then."""
        used = []
        for file in reversed(self._files.values()):
            if file.used_s < since_s:
                break
            used.append((file.name, file.used_s))
        return used

    def take(self, name: str) -> HeldFile | None:
        """Out of the books."""
        file = self._files.pop(name, None)
        if file is not None:
            self.total_bytes -= file.charged_bytes
        return file

    def take_oldest(self, goes: Callable[[HeldFile], bool]) -> list[HeldFile]:
        """Out of the books: the least recently used, as long as `goes` says so of the next one; no
        more than a lot."""
        lot: list[HeldFile] = []
        while self._files and len(lot) < LOT_FILES:
            file = next(iter(self._files.values()))
            if not goes(file):
                break
            self.take(file.name)
            lot.append(file)
        return lot

    def put_back(self, file: HeldFile, now_s: float) -> None:
        """It still lies there: its turn to go comes behind that of all others."""
        if file.name not in self._files:
            file.used_s = now_s
            self._add(file)

    def clear(self) -> None:
        self._files.clear()
        self.total_bytes = 0

    def _add(self, file: HeldFile) -> None:
        self._files[file.name] = file
        self.total_bytes += file.charged_bytes
