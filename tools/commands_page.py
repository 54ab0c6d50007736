"""Write docs/reference/commands.md from the commands themselves: `make docs`."""

import inspect
import re
from collections.abc import Iterable, Iterator

from typer.core import TyperGroup
from typer.main import get_command

from services.cli.command import Command, Group, Parameter, described, usages_of
from services.cli.examples import examples_of
from services.cli.main import GROUPS, OPTIONS_OF_COMMANDS, app, load
from services.cli.output import EXIT_CODES

_HEADER = """# Commands

Each command, its options, and examples; a test runs the first of each beside a real deployment.
`sediment COMMAND --help` shows the same. Written by `make docs`.

A duration is typed as `8d`, `1h`, `30m`, `5s` or `500ms`, a size as `64KiB`, `1M` or `2GiB`; a
number alone is seconds or bytes. Topics' settings have Kafka's units. The words are those of the
[glossary](../start/glossary.md); [json.md](json.md) has the fields of `-o json`."""


def commands() -> Iterator[tuple[str, Command | Group]]:
    """Yield each command that does something, by the words that name it."""
    for name in (name for group in GROUPS.values() for name in group):
        loaded = load(name)
        assert isinstance(loaded, Command | Group)
        if isinstance(loaded, Command):
            yield name, loaded
        if isinstance(loaded, TyperGroup):
            for word, command in loaded.commands.items():
                assert isinstance(command, Command)
                yield f"{name} {word}", command


def commands_markdown() -> str:
    """Return the whole page."""
    every = dict(commands())
    shared = dict[str, Parameter]()
    for command in every.values():
        for each in _parameters(command):
            if OPTIONS_OF_COMMANDS.intersection(each.opts):
                shared.setdefault(each.opts[-1], each)
    lines = [_HEADER, "", "## Exit codes", "", "Unless a command has others:", ""]
    lines += ["| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "## Options of all commands", "", "Before the command or behind it:", ""]
    lines += _table(_parameters(get_command(app)))
    lines += [
        "",
        "## Options of many commands",
        "",
        "`--help` shows which of them a command has.",
        "",
    ]
    lines += _table(shared.values())
    hidden = [described(each) for each in shared.values()]
    for title, names in GROUPS.items():
        lines += ["", f"## {title}"]
        for name, command in every.items():
            if name.partition(" ")[0] in names:
                own = [p for p in _parameters(command) if described(p) not in hidden]
                lines += ["", f"### sediment {name}", "", *_text(command.help or "")]
                lines += ["", "```sh", *examples_of(name), "```"]
                usage = " ".join(("sediment", name, "[OPTIONS]", *usages_of(command)))
                lines += ["", f"`{usage}`"]
                lines += ["", *_table(own)] if own else []
    return "\n".join(lines)


def _parameters(command: object) -> list[Parameter]:
    found: list[Parameter] = command.params  # type: ignore[attr-defined]  # of typer's classes
    return found


def _text(help: str) -> Iterator[str]:
    """Yield paragraphs; one that is not to be wrapped becomes a block."""
    for number, paragraph in enumerate(inspect.cleandoc(help).split("\n\n")):
        raw, is_raw, rest = paragraph.partition("\b\n")
        yield from [""] if number else []
        yield from ["```text", rest, "```"] if is_raw and not raw else [_escaped(paragraph)]


def _table(parameters: Iterable[Parameter]) -> list[str]:
    rows = [described(each) for each in parameters]
    escaped = [(typed.replace("|", "\\|"), _escaped(text)) for typed, text in rows]
    return [
        "| option | meaning |",
        "|---|---|",
        *(f"| `{typed}` | {text} |" for typed, text in escaped),
    ]


def _escaped(text: str) -> str:
    """Escape what Markdown would take for a mark."""
    return re.sub(r"[*|<]", r"\\\g<0>", text)
