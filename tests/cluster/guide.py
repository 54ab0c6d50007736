"""The commands and files of docs/run/kubernetes.md, as its reader copies them."""

import re
import textwrap
from dataclasses import dataclass

from tests.helm.dockerfile import ROOT

_PAGE = ROOT / "docs" / "run" / "kubernetes.md"


def blocks(heading: str, language: str) -> list[str]:
    """Return the blocks of a language below a heading, in their order.

    Raises:
        LookupError: there is no such heading, or no such block below it.
    """
    sections = re.split(r"^##+ (.+)$", _PAGE.read_text(), flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    pattern = rf"^( *)```{language}\n(.*?)^\1```$"
    texts = re.findall(pattern, found.get(heading, ""), flags=re.MULTILINE | re.DOTALL)
    if not texts:
        raise LookupError(f"{_PAGE.name} has no block of {language} below {heading!r}")
    return [textwrap.dedent(text) for _, text in texts]


def filled_in(text: str, values: dict[str, str]) -> str:
    """Replace what the reader must replace.

    Raises:
        LookupError: a part to be replaced is not there.
    """
    for placeholder, value in values.items():
        if placeholder not in text:
            raise LookupError(f"{_PAGE.name} has no {placeholder} in:\n{text}")
        text = text.replace(placeholder, value)
    return text


@dataclass(frozen=True)
class Build:
    """A command `docker build`: the image's name, the Dockerfile and the values of its ARGs."""

    name: str
    dockerfile: str
    arguments: dict[str, str]


def builds(text: str) -> list[Build]:
    """Find the commands that build images from the root of the repository."""
    pattern = r"^docker build -f docker/(\S+)((?: --build-arg \S+=\S+)*) -t (\S+) \.$"
    return [
        Build(name, dockerfile, dict(re.findall(r"--build-arg (\S+)=(\S+)", options)))
        for dockerfile, options, name in re.findall(pattern, text, flags=re.MULTILINE)
    ]


def images() -> dict[str, str]:
    """Return the Dockerfile of each image that the reader builds, by the image's name."""
    return {build.name: build.dockerfile for build in builds("\n".join(blocks("Before", "sh")))}
