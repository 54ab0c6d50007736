"""Read durations and sizes as people type them (8d, 1h, 64KiB, 1M), and write them so."""

import math
import re
from dataclasses import dataclass

_NUMBER_AND_UNIT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([a-z]*)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of value with a unit, for the options of command lines.

    Attributes:
        name: stands for the value in a help.
        rule: how to type one.
        units: for each unit, the largest first, what one is and its names; the first is written.
        plain: what one is of a number without a unit.
    """

    name: str
    rule: str
    units: tuple[tuple[float, tuple[str, ...]], ...]
    plain: float = 1

    def __call__(self, text: str) -> float:
        """Read a text, down to its smallest unit; a whole number is an int.

        Raises:
            ValueError: it is no such quantity; the message has the rule.
        """
        match = _NUMBER_AND_UNIT.fullmatch(text.removesuffix("/s"))
        ones = {name.lower(): one for one, names in self.units for name in names}
        one = ones.get(match[2].lower(), 0) if match and match[2] else self.plain
        if match is None or not one:
            raise ValueError(f"must be {self.rule}, is {text!r}")
        value = (float(match[1]) if "." in match[1] else int(match[1])) * one
        is_whole = self.units[-1][0] == 1 or value == int(value)
        return int(value) if is_whole else value

    def text(self, value: float) -> str:
        """Write a value in the largest unit that divides it: 86,400,000 ms is "1d"."""
        for one, (name, *_) in self.units:
            count = round(value / one)
            if count and math.isclose(value, count * one):
                return f"{count}{name}"
        return f"{value:g}"


def _duration(second: float) -> Quantity:
    units = (
        (86_400 * second, ("d",)),
        (3_600 * second, ("h",)),
        (60 * second, ("m", "min")),
        (second, ("s",)),
        (second / 1_000, ("ms",)),
    )
    return Quantity("DURATION", "a duration such as 8d, 1h, 30m or 5s", units, second)


DURATION_MS = _duration(1_000)
DURATION_S = _duration(1)
_BYTES = tuple((1024 ** (4 - at), (f"{name}iB", name)) for at, name in enumerate("TGMK"))
SIZE_BYTES = Quantity("SIZE", "a size such as 64KiB, 1M or 2GiB", (*_BYTES, (1, ("B",))))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: "1 partition", "2,290 segments"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
