"""Define the options of TLS, which stand before the name of a command; imports nothing heavy."""

from contextvars import ContextVar
from pathlib import Path

import typer

from services.cli.command import option, toggle
from services.common.client_security import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    NOT_CHOSEN,
    PLAINTEXT_VARIABLE,
    TOKEN_VARIABLE,
    ClientSecurity,
    SecurityOptions,
)
from services.common.release import release

_chosen = ContextVar("security", default=NOT_CHOSEN)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"sediment {release()}")
        raise typer.Exit


def choose_security(
    tls_ca: Path | None = option(
        "PEM file with the authorities of the services' certificates. Default: the files "
        "of the running `sediment up --tls`; else plaintext, on this machine only.",
        envvar=CA_VARIABLE,
    ),
    tls_certificate: Path | None = option(
        "PEM file with your certificate.", envvar=CERTIFICATE_VARIABLE
    ),
    tls_key: Path | None = option("PEM file with its key.", envvar=KEY_VARIABLE),
    token_file: Path | None = option(
        "File with a service-account token, for the services' token ports.", envvar=TOKEN_VARIABLE
    ),
    plaintext: bool = toggle(
        "--plaintext", "Connect to other machines without TLS, too.", envvar=PLAINTEXT_VARIABLE
    ),
    _version: bool = toggle(
        "--version", "Show the release.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Store the options for the command that follows."""
    files = ClientSecurity(tls_ca, tls_certificate, tls_key, token_file)
    _chosen.set(SecurityOptions(files, plaintext))


def chosen_security() -> SecurityOptions:
    """Return what the user chose."""
    return _chosen.get()
