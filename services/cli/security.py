"""Define the options of TLS, which stand before the name of a command; imports nothing heavy."""

from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer

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
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            envvar=CA_VARIABLE,
            help="PEM file with the authorities of the services' certificates. Default: the files "
            "of the running `sediment up --tls`; else plaintext, on this machine only.",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(envvar=CERTIFICATE_VARIABLE, help="PEM file with your certificate."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar=KEY_VARIABLE, help="PEM file with its key.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            help="File with a service-account token, for the services' token ports.",
        ),
    ] = None,
    plaintext: Annotated[
        bool,
        typer.Option(
            "--plaintext",
            envvar=PLAINTEXT_VARIABLE,
            help="Connect to other machines without TLS, too.",
        ),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the release."),
    ] = False,
) -> None:
    """Store the options for the command that follows."""
    files = ClientSecurity(tls_ca, tls_certificate, tls_key, token_file)
    _chosen.set(SecurityOptions(files, plaintext))


def chosen_security() -> SecurityOptions:
    """Return what the user chose."""
    return _chosen.get()
