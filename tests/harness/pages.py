"""Read commands from pages of the documentation."""

import re
from pathlib import Path

_BLOCK = re.compile(r"(?ms)^( *)```sh\n(.*?)^\1```")
_COMMAND = re.compile(r"(?:^|\$\()(?:\.venv/bin/)?sediment ((?:\$\(.*\)|[^#)])*)")


def shown_commands(page: Path) -> list[str]:
    """Return what a page's shell blocks have behind `sediment`, a line for each, in their order."""
    blocks = [block.replace("\\\n", " ") for _, block in _BLOCK.findall(page.read_text())]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [
        found[1].replace('"', "'").strip() for line in lines if (found := _COMMAND.search(line))
    ]
