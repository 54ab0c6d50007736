"""As much of a Dockerfile as ours use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.helm.chart import CHART

ROOT = CHART.parent


@dataclass(frozen=True)
class Instruction:
    name: str
    arguments: str


def instructions(path: Path, build_arguments: Mapping[str, str] | None = None) -> list[Instruction]:
    """In their order; continued lines are one, comments are none, `$NAME` is an ARG's value."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    parts = [line.split(maxsplit=1) for line in joined if line.strip()]
    values: dict[str, str] = {}
    found = []
    for name, text in parts:
        if name == "ARG":
            argument, _, default = text.partition("=")
            values[argument] = (build_arguments or {}).get(argument, default.strip('"'))
            continue
        for argument, value in values.items():
            text = text.replace(f"${argument}", value)
        found.append(Instruction(name, " ".join(text.split())))
    return found


def stages(path: Path, build_arguments: Mapping[str, str] | None = None) -> list[list[Instruction]]:
    """The instructions after each FROM."""
    found: list[list[Instruction]] = []
    for instruction in instructions(path, build_arguments):
        if instruction.name == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def arguments_of(stage: list[Instruction], name: str) -> list[str]:
    return [instruction.arguments for instruction in stage if instruction.name == name]


def copied_from_context(stage: list[Instruction]) -> list[tuple[str, str]]:
    """(path in the repository, path in the image) of each COPY that is not from another stage."""
    copies = [text.split() for text in arguments_of(stage, "COPY") if "--from=" not in text]
    return [(source, target) for *sources, target in copies for source in sources]


def allowed_by_dockerignore() -> set[str]:
    """The paths that .dockerignore, which begins by leaving out everything, lets in again."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    if rules[0] != "*":
        raise ValueError(".dockerignore does not leave everything out first")
    return {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
