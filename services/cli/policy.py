"""Check a policy file: `sediment policy`."""

from itertools import groupby
from pathlib import Path

from services.api.roles import Entry, Topics, table
from services.cli.command import argument, option
from services.cli.connections import Call, command_group, with_services
from services.cli.output import CommandError, Table, print_json, print_tables, say
from services.common.reloaded_file import FileError
from services.rpc.server.policy import Policy, load_policy
from services.views.documents import fields_as_json

app = command_group("Check a policy file and show what it grants.")


@app.callback()
def _policy() -> None:
    pass


@app.command("check")
@with_services()
def check(
    call: Call,
    file: Path = argument("The policy file, TOML.", metavar="FILE"),
    identity: str = option(
        "Show what this identity may call: a URI or DNS name of a certificate, or "
        "system:serviceaccount:NAMESPACE:NAME.",
        "--as",
        default="",
        metavar="IDENTITY",
    ),
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
            print_json(fields_as_json(grant) | {"roles": sorted(grant.roles)})
        return
    rows = [
        (
            number,
            ",".join(sorted(grant.roles)),
            ",".join(grant.topics),
            ",".join(grant.groups) or "-",
            " ".join(grant.identities),
        )
        for number, grant in enumerate(policy.grants, 1)
    ]
    table = ("", ("grant", "roles", "topics", "groups", "identities"), rows)
    print_tables(table, is_wide=call.is_wide)


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
    tables: list[Table] = []
    for service, of_service in groupby(calls, lambda each: each[0].service):
        rows = [
            (
                entry.rpc,
                entry.value or "-",
                "denied" if topics is None else ", ".join(topics) or "-",
            )
            for entry, topics in of_service
        ]
        tables.append((service, ("call", "only", "topics"), rows))
    print_tables(*tables, is_wide=call.is_wide)


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
