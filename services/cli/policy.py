"""Check a policy file: `sediment policy`."""

from itertools import groupby, zip_longest
from pathlib import Path
from typing import Annotated

import typer

from services.api.roles import Entry, Topics, table
from services.cli.connections import Call, command_group, with_services
from services.cli.output import CommandError, print_json, print_table, say
from services.common.reloaded_file import FileError
from services.rpc.server.policy import Policy, load_policy

app = command_group("Check a policy file and show what it grants.")


@app.callback()
def _policy() -> None:
    pass


@app.command("check")
@with_services()
def check(
    call: Call,
    file: Annotated[Path, typer.Argument(help="The policy file, TOML.", metavar="FILE")],
    identity: Annotated[
        str,
        typer.Option(
            "--as",
            help="Show what this identity may call: a URI or DNS name of a certificate, or "
            "system:serviceaccount:NAMESPACE:NAME.",
            metavar="IDENTITY",
        ),
    ] = "",
) -> None:
    """Check a policy file as a service does, and show its grants.

    Exits with 2 if a service would refuse the file.
    """
    try:
        policy = load_policy(file)
    except FileError as e:
        raise CommandError(str(e)) from e
    if identity:
        _show_calls(policy, identity, call)
    else:
        _show_grants(policy, call)


def _show_grants(policy: Policy, call: Call) -> None:
    if call.is_json:
        for grant in policy.grants:
            print_json(
                {
                    "identities": grant.identities,
                    "roles": sorted(grant.roles),
                    "topics": grant.topics,
                }
            )
        return
    # A line for each identity, role and topic: cells have no line breaks.
    rows = [
        ("" if line else str(number), *row)
        for number, grant in enumerate(policy.grants, 1)
        for line, row in enumerate(
            zip_longest(grant.identities, sorted(grant.roles), grant.topics, fillvalue="")
        )
    ]
    print_table("Grants", ("grant", "identities", "roles", "topics"), rows)


def _show_calls(policy: Policy, identity: str, call: Call) -> None:
    calls = [(entry, _topics_of(policy, identity, entry)) for entry in table()]
    if not policy.grants_of(identity):
        say(f"the policy grants nothing to {identity}")
    if call.is_json:
        for entry, topics in calls:
            shown: dict[str, object] = {"service": entry.service, "rpc": entry.rpc}
            if entry.value:
                shown["only"] = entry.value
            print_json({**shown, "allowed": topics is not None, "topics": topics or []})
        return
    for service, of_service in groupby(calls, lambda each: each[0].service):
        rows = [
            (entry.rpc, entry.value, "denied" if topics is None else ", ".join(topics) or "-")
            for entry, topics in of_service
        ]
        print_table(service, ("call", "only", "topics"), rows)


def _topics_of(policy: Policy, identity: str, entry: Entry) -> list[str] | None:
    """Return the patterns of the topics for which an identity may make a call; None: it may not.

    The list is empty if topics do not matter.
    """
    granted = [
        grant for grant in policy.grants_of(identity) if not entry.roles.isdisjoint(grant.roles)
    ]
    topics = list(dict.fromkeys(topic for grant in granted for topic in grant.topics))
    if not granted or (entry.topics is Topics.ALL and "*" not in topics):
        return None
    if entry.topics is Topics.NONE:
        return []
    return ["*"] if "*" in topics else topics
