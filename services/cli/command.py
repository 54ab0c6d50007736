"""Read the options of commands, and print help and mistakes in plain words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from services.cli.examples import examples_of
from services.cli.output import EXIT_USAGE
from services.common.quantities import Quantity

Parameter = TyperArgument | TyperOption

_WORDS = (
    ("got unexpected extra argument(s)", "too many arguments"),
    (". Did you mean", "; did you mean"),
)
"""What typer says, and what we say."""
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False}
_FLAGS |= {"no": False, "off": False}


def option(help: str, *flags: str, default: Any = None, **settings: Any) -> Any:
    """Declare an option; without `flags` it has the name of its parameter.

    Args:
        default: ... for an option that must be given.
    """
    return typer.Option(default, *flags, help=help, **settings)


def toggle(flag: str, help: str, **settings: Any) -> Any:
    """Declare an option without a value, which is off if it is not given."""
    return typer.Option(False, flag, help=help, **settings)


def argument(help: str, *, default: Any = ..., **settings: Any) -> Any:
    """Declare an argument; it must be given unless it has a default."""
    return typer.Argument(default, help=help, **settings)


def quantity(
    flag: str,
    kind: Quantity,
    help: str,
    default: float | None = ...,  # type: ignore[assignment]  # typer's "must be given"
    *,
    min: float | None = None,
    max: float | None = None,
) -> Any:
    """Declare an option for a duration or a size."""
    return typer.Option(default, flag, parser=kind, help=help, min=min, max=max)


@dataclass(frozen=True, slots=True)
class Kind:
    """What an option or argument accepts, from its declaration."""

    parameter: Parameter

    @property
    def type(self) -> Any:
        """Return the type of one value."""
        annotation = self.parameter.type_descriptor.annotation
        return (get_args(annotation) or (annotation,))[0]

    @property
    def quantity(self) -> Quantity | None:
        parser = self.parameter.type_descriptor.parameter_info.parser
        return parser if isinstance(parser, Quantity) else None

    @property
    def is_choice(self) -> bool:
        return isinstance(self.type, type) and issubclass(self.type, StrEnum)

    @property
    def name(self) -> str:
        """Return what stands for a value in the help; "" for a switch."""
        if self.parameter.metavar:
            return self.parameter.metavar
        if self.quantity:
            return self.quantity.name
        if self.is_choice:
            return "|".join(self.type)
        names = {int: "N", float: "NUMBER", Path: "PATH", bool: ""}
        return names.get(self.type, "TEXT")

    def text(self, value: Any) -> str:
        return self.quantity.text(value) if self.quantity else str(value)

    @property
    def bounds(self) -> str:
        """Return the least and the greatest value: "0 or more", "1 to 8"."""
        least, most = self.parameter.min, self.parameter.max
        if least is None:
            return ""
        least_text = self.text(least)
        return f"{least_text} or more" if most is None else f"{least_text} to {self.text(most)}"

    def read(self, text: str) -> Any:
        """Read a value.

        Raises:
            ValueError: it is none; the message has the rule.
        """
        if self.quantity:
            value: Any = self.quantity(text)
        elif self.is_choice:
            if text not in [*self.type]:
                raise ValueError(f"must be one of {', '.join(self.type)}, is {text!r}")
            return self.type(text)
        elif self.type is bool:
            if text.lower() not in _FLAGS:
                raise ValueError(f"must be true or false, is {text!r}")
            return _FLAGS[text.lower()]
        elif self.type in (int, float):
            value = _number(text, self.type)
        else:
            return self.type(text)
        least, most = self.parameter.min, self.parameter.max
        is_within = value is not None and (least is None or value >= least)
        if not is_within or (most is not None and value > most):
            what = "a whole number" if self.type is int else "a number"
            rule = self.quantity.rule if self.quantity else what
            raise ValueError(f"must be {', '.join(filter(None, (rule, self.bounds)))}, is {text!r}")
        return value


def _number(text: str, kind: type[int] | type[float]) -> float | None:
    try:
        number = kind(text)
    except ValueError:
        return None
    return number if text.isascii() and "_" not in text and math.isfinite(number) else None


class _Reader:
    """Read the values of a parameter; typer's own reads each with Pydantic."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(value, list | tuple):
            return [self.coerce(each, param, ctx) for each in value]
        if not isinstance(value, str):
            return value
        try:
            return Kind(param).read(value)
        except ValueError as e:
            raise typer.BadParameter(str(e), ctx=ctx, param=param) from e


def _let_us_read(parameter: Any) -> None:
    """Let our reader read the values of a parameter."""
    parameter.get_runtime_param = _Reader


class _Shown(TyperCommand if TYPE_CHECKING else object):  # type: ignore[misc]  # a mixin
    """Show the options of a command and its examples."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for each in self.params:
            _let_us_read(each)

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        option: TyperOption | None = super().get_help_option(ctx)
        if option is not None:
            _let_us_read(option)
        return option

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, kind in (("Arguments", TyperArgument), ("Options", TyperOption)):
            rows = [described(p) for p in self.get_params(ctx) if isinstance(p, kind)]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        names = list[str]()
        while ctx.parent is not None:
            names.insert(0, ctx.info_name)
            ctx = ctx.parent
        lines = examples_of(" ".join(names))
        if lines:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))


class Command(_Shown, TyperCommand):
    """A command of ours."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar or "", *usages_of(self)]


class Group(_Shown, TyperGroup):
    """A group of commands, each of which is shown with its first sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(EXIT_USAGE)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(n, first_sentence(c.help)) for n, c in self.commands.items()])


class ListGroup(Group):
    """A group whose command `list` runs if none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        word = next((each for each in args if not each.startswith("-")), "")
        is_help = not word and not {"-h", "--help"}.isdisjoint(args)
        named = [*args] if is_help or word in self.commands else ["list", *args]
        return super().parse_args(ctx, named)


def first_sentence(help: str | None) -> str:
    sentence, dot, _ = " ".join((help or "").split()).partition(". ")
    return sentence + dot.strip()


def usages_of(command: TyperCommand | TyperGroup) -> list[str]:
    """Return the arguments of a command as they are typed."""
    return [_usage_of(each) for each in command.params if isinstance(each, TyperArgument)]


def _usage_of(argument: TyperArgument) -> str:
    name = Kind(argument).name + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def described(parameter: Parameter) -> tuple[str, str]:
    """Return how a parameter is typed, and what it is for."""
    kind = Kind(parameter)
    if isinstance(parameter, TyperArgument):
        typed = _usage_of(parameter).strip("[]")
    else:
        typed = f"{', '.join(sorted(parameter.opts, key=len))} {kind.name}".rstrip()
    details = "; ".join(_details(parameter, kind))
    return typed, " ".join(filter(None, (parameter.help, f"[{details}]" if details else "")))


def _details(parameter: Parameter, kind: Kind) -> Iterator[str]:
    if parameter.required:
        yield "required"
    default = parameter.default
    if default not in (None, False, "") and parameter.show_default:
        yield f"default: {kind.text(default)}"
    if kind.bounds:
        yield kind.bounds
    if parameter.envvar:
        yield f"or set {parameter.envvar}"


def mistake_text(error: typer.TyperException) -> str:
    """Return in one line what is wrong with a command line, and whose help shows what is right."""
    context, similar = getattr(error, "ctx", None), getattr(error, "possibilities", None)
    text = error.message[:1].lower() + error.message[1:].rstrip(".")
    if similar:
        text += f"; did you mean {' or '.join(sorted(similar))}?"
    for theirs, ours in _WORDS:
        text = text.replace(theirs, ours)
    if isinstance(error, typer.BadParameter):
        typed = error.param_hint or _typed_as(error.param, context)
        text = f"{typed}: {error.message or 'is missing'}"
    return f"{text} (see `{context.command_path} --help`)" if context else text


def _typed_as(parameter: Any, context: Any) -> str:
    source = context and context.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return str(parameter.envvar)
    is_option = isinstance(parameter, TyperOption)
    return max(parameter.opts, key=len) if is_option else Kind(parameter).name
