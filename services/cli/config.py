"""Check a file of settings before a service reads it: `sediment config`."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import typer
from pydantic import SecretStr

from services.cli.command import argument
from services.cli.connections import Call, command_group, with_services
from services.cli.output import EXIT_PARTIAL, CommandError
from services.common.console_settings import ConsoleSettings
from services.common.settings import VariableSettings
from services.local.data_directory import StackEndpoints, read_credentials
from services.rlm.settings import RlmSettings
from services.rlmm.settings import RlmmSettings
from services.rsm.settings import RsmSettings

app = command_group("Check a file of settings.")

CLASSES: Mapping[str, type[VariableSettings]] = {
    "RSM": RsmSettings,
    "RLMM": RlmmSettings,
    "RLM": RlmSettings,
    "CONSOLE": ConsoleSettings,
}
_PREFIXES = tuple(f"{service}_" for service in CLASSES)
_SIMILAR = 0.8


@app.callback()
def _config() -> None:
    pass


@app.command()
@with_services()
def check(
    call: Call,
    file: Path = argument(
        "NAME=VALUE on each line, as for `docker run --env-file` or systemd.", metavar="FILE"
    ),
) -> None:
    """Check a file of settings as the services would.

    Names what is unknown, missing, out of bounds or impossible together.
    Files and addresses that settings name are not checked:
    `sediment doctor` does that on the machine of the services.

    \b
    Exit codes:
      1  one would not; each problem is named
    """
    variables = read_variables(file)
    problems, services = [*_problems(variables)], services_of(variables)
    described = [{"service": service, "problem": text} for service, text in problems]
    call.show(
        {"services": services, "problems": described},
        (str(file), ("service", "problem"), problems) if problems else None,
        lines=[] if problems else [f"{file}: the settings of {', '.join(services)} are valid"],
    )
    raise typer.Exit(EXIT_PARTIAL if problems else 0)


def read_variables(file: Path) -> dict[str, str]:
    """Read NAME=VALUE lines; empty lines and those that begin with # are comments.

    Raises:
        CommandError: the file cannot be read, or a line is no assignment; its text, which may be
            secret, is not shown.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise CommandError(f"{file}: {getattr(e, 'strerror', None) or 'is not UTF-8'}") from e
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise CommandError(f"{file}, line {number}: is not NAME=VALUE")
        variables[name.strip()] = _unquoted(value.strip())
    return variables


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def services_of(variables: Iterable[str]) -> list[str]:
    """Return the services whose variables a file of settings has: RSM, RLMM, RLM, CONSOLE."""
    return [s for s in CLASSES if any(name.startswith(f"{s}_") for name in variables)]


def configured_services(variables: Iterable[str]) -> list[str]:
    """Return the services that variables of this environment configure.

    Other programs too have variables that begin with CONSOLE_, or a LOG_LEVEL of that prefix.
    """
    names = {name.upper() for name in variables}
    return [
        service
        for service, settings in CLASSES.items()
        if names & set(settings.variables()) - {f"{service}_LOG_LEVEL"}
    ]


def similar_setting(name: str) -> str | None:
    """Return the setting whose name a variable's resembles; None if there is none."""
    known = [name for each in CLASSES.values() for name in each.variables()]
    similar = get_close_matches(name.upper(), known, 1, _SIMILAR)
    return similar[0] if similar else None


def _problems(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield service ("" if it is none's) and problem."""
    services = services_of(variables)
    if not services:
        yield "", "has no variable that begins with RSM_, RLMM_, RLM_ or CONSOLE_"
    for service in services:
        try:
            CLASSES[service].to_serve(variables)
        except SystemExit as e:
            for line in str(e).splitlines():
                yield service, line
    for name in variables:
        similar = None if name.startswith(_PREFIXES) else similar_setting(name)
        if similar:
            yield "", f"{name} is no setting; did you mean {similar}?"


def rsm_settings_of(stack: StackEndpoints) -> RsmSettings:
    """Return the settings with which the RSM of a running `sediment up` uses its bucket."""
    credentials = read_credentials(stack)
    return RsmSettings(
        backend=stack.store,
        locations_file=Path(stack.locations_file) if stack.locations_file else None,
        endpoint=stack.s3_endpoint,
        region=stack.s3_region,
        bucket=stack.s3_bucket,
        prefix=stack.s3_prefix,
        secure=False,
        access_key=SecretStr(credentials.s3_access_key),
        secret_key=SecretStr(credentials.s3_secret_key),
        deployment_id=stack.deployment_id,
    )
