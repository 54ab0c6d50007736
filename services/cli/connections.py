"""Connect a command to the services, and define the options for their addresses."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer

from services.api.offset_queries import OffsetService
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import SegmentObjects
from services.cli.command import Command, Group, option
from services.cli.interrupts import interruptible
from services.cli.output import Cells, CommandError, Format, Table, print_json, print_tables, say
from services.cli.security import chosen_security
from services.client.leader import LeaderReads
from services.common.addresses import each_address
from services.common.client_security import ClientSecurity, SecurityOptions
from services.local.data_directory import (
    DataDirectoryError,
    StackEndpoints,
    default_directory,
    read_credentials,
    running_stack,
)
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from services.rpc.client.timeouts import SLOW_CALLS
from services.views.endpoints import ServiceAddresses, TierClients, connect_tier

T = TypeVar("T")
_SCREEN_ROWS = 1_000
_LAST = "--last"
_ADDRESS_HELP = (
    "The service's address; also dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT. Default: that of the "
    "running `sediment up`."
)


class _Commands(typer.Typer):
    """The commands of a file."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, cls=Command, **settings)


def command_group(help: str | None = None, cls: type[Group] = Group) -> typer.Typer:
    """Return the object with which a file's commands register."""
    group = _Commands(cls=cls, no_args_is_help=cls is Group, rich_markup_mode=None)
    if help is not None:
        group.info.help = help
    return group


def address_of(name: str, data_dir: Path | None) -> str:
    """Return a value of the `sediment up` that runs here: HOST:PORT of a service, or another one.

    Raises:
        CommandError: no `sediment up` is running, or it has no such value.
    """
    otherwise = f", or pass --{name} HOST:PORT" if name in _ADDRESSES else ""
    endpoints = running_stack(data_dir)
    if endpoints is None:
        raise CommandError(
            f"no `sediment up` is running on {data_dir or default_directory()}; start one, or "
            f"point --data-dir at its directory{otherwise}"
        )
    values = {
        key: text for key, text in asdict(endpoints).items() if isinstance(text, str) and text
    }
    if name not in values:
        raise CommandError(
            f"the `sediment up` on {endpoints.data_directory} serves no {name}; choose one of "
            f"{', '.join(values)}{otherwise}"
        )
    return values[name]


def completed(kind: str) -> Callable[[typer.Context, str], list[str]]:
    """Return what completes topics, partitions or settings from the deployment."""

    def words(context: typer.Context, incomplete: str) -> list[str]:
        from services.cli.completion import deployed_words

        return deployed_words(kind, context)

    return words


def _named(metavar: str, example: str, default: str = "") -> Any:
    """Declare an argument that names a topic or a partition."""
    text = f"For example {example}, or TOPIC_ID:{example} if several topics have had this name."
    return typer.Argument(
        metavar=metavar, autocompletion=completed(metavar), help=f"{text} {default}".rstrip()
    )


Topic = Annotated[str, _named("TOPIC", "orders")]
Topics = Annotated[
    list[str] | None, _named("TOPIC", "orders", "Or a pattern: 'orders*'. Default: all topics.")
]
TopicPartition = Annotated[str, _named("TOPIC-PARTITION", "orders-0")]
TopicPartitions = Annotated[
    list[str] | None,
    _named("TOPIC-PARTITION", "orders-0", "Or a topic, or a pattern: 'orders*'. Default: all."),
]
ONLY_TOPICS: list[str] | None = option(
    "Only this topic, for example orders, or TOPIC_ID:orders if several topics have had this name; "
    "may be repeated.",
    metavar="TOPIC",
    autocompletion=completed("TOPIC"),
)
Locations = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        max=65_535,
        help="Number of a registered storage location of RSM; may be repeated. Default: the "
        "locations that receive new segments.",
    ),
]


def _shared(name: str, kind: Any, declared: Any) -> Parameter:
    """Return an option that several commands have."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=declared)


_ADDRESSES = {
    each: _shared(
        each,
        str | None,
        option(_ADDRESS_HELP, metavar="HOST:PORT", envvar=f"SEDIMENT_{each.upper()}"),
    )
    for each in ("rsm", "rlmm", "rlm")
}
_DATA_DIR = _shared(
    "data_dir",
    Path | None,
    option(
        "Data directory of `sediment up`. Default: the user's data directory, or "
        "/var/tmp/sediment for root."
    ),
)
_DATABASE = [
    _shared(
        "database_url",
        str,
        option(
            "postgresql://USER:PASSWORD@HOST:PORT/NAME. Other users of this machine can "
            "read options: keep the password in the variable or in a file. Default: that of "
            "the running `sediment up`.",
            default="",
            metavar="URL",
            envvar="RLMM_DATABASE_URL",
            show_default=False,
        ),
    ),
    _shared(
        "database_password_file",
        Path | None,
        option(
            "File with the database password, if the URL has none.",
            envvar="RLMM_DATABASE_PASSWORD_FILE",
        ),
    ),
]
OUTPUT: Format = option(
    "A table for people, a wide one with ids and uncut names, or JSON for scripts.",
    "-o",
    "--output",
    default=Format.TABLE,
)


@dataclass(frozen=True, slots=True)
class Call:
    """The options that commands share, the services that they lead to, and how to print."""

    rsm: str | None = None
    rlmm: str | None = None
    rlm: str | None = None
    data_dir: Path | None = None
    database_url: str = field(default="", repr=False)
    database_password_file: Path | None = None
    output: Format = Format.TABLE
    limit: int | None = None
    limit_flag: str = ""

    @property
    def is_json(self) -> bool:
        return self.output is Format.JSON

    @property
    def is_wide(self) -> bool:
        return self.output is Format.WIDE

    @property
    def database(self) -> tuple[str, Path | None]:
        """Return the URL of the metadata database, and the file with its password.

        Raises:
            CommandError: no URL was given, and no `sediment up` is running.
        """
        if self.database_url:
            return self.database_url, self.database_password_file
        stack = running_stack(self.data_dir)
        if stack is None:
            raise CommandError(
                "no database is known: set RLMM_DATABASE_URL or pass --database-url, or run it "
                f"beside a `sediment up`; none is running on {self.data_dir or default_directory()}"
            )
        return read_credentials(stack).database_url, None

    def address(self, service: str) -> str:
        """Return the target that was given; else that of the running `sediment up`.

        Raises as address_of.
        """
        return getattr(self, service) or address_of(service, self.data_dir)

    def known_addresses(self, *services: str) -> ServiceAddresses:
        """Return the addresses of these services that were given or that `sediment up` has.

        Raises:
            CommandError: no address is known at all.
        """
        known: dict[str, str] = {}
        for service in services:
            try:
                known[service] = self.address(service)
            except CommandError:
                if service == "rlmm" and not (self.rsm or self.rlmm or self.rlm):
                    raise
        return ServiceAddresses(**known)

    def security_options(self, targets: Iterable[str]) -> SecurityOptions:
        """Return what the user chose; else the files of the `sediment up` with these addresses."""
        chosen = chosen_security()
        if chosen.is_chosen:
            return chosen
        stack = self.stack_of(targets)
        return chosen if stack is None else stack.security

    def stack_of(self, targets: Iterable[str]) -> StackEndpoints | None:
        """Return the running `sediment up` that has all these addresses; None if there is none."""
        try:
            endpoints = running_stack(self.data_dir)
        except DataDirectoryError:
            # Of another user, perhaps: `address` has reported it if the address came from there.
            return None
        addresses = [each for target in targets for each in each_address(target) if each]
        return endpoints if endpoints is not None and endpoints.serves(addresses) else None

    def security_for(self, target: str) -> ClientSecurity:
        return self.security_options([target]).security_for(target)

    def connect(self, addresses: ServiceAddresses) -> AbstractContextManager[TierClients]:
        """Connect to all services whose addresses are known."""
        return connect_tier(addresses, self.security_for)

    @contextmanager
    def rlmm_client(self) -> Iterator[RemoteLogMetadataManager]:
        with self._channel("rlmm") as (channel, target):
            yield RemoteLogMetadataManagerClient(channel, target)

    @contextmanager
    def rlm_client(self) -> Iterator[OffsetService]:
        with self._channel("rlm") as (channel, target):
            yield RemoteLogManagerClient(channel, target)

    @contextmanager
    def rlm_readers(self) -> Iterator[tuple[OffsetService, LeaderReads]]:
        """Connect to an RLM, and through it to those beside the leaders of partitions."""
        with ExitStack() as opened:

            def connect(target: str) -> OffsetService:
                channel = open_channel(target, self.security_for(target))
                return RemoteLogManagerClient(opened.enter_context(channel), target)

            given = connect(self.address("rlm"))
            yield given, LeaderReads(given, connect)

    @contextmanager
    def rsm_clients(self) -> Iterator[tuple[RemoteStorageManager, SegmentObjects]]:
        """Connect to RSM, once for both of its interfaces."""
        with self._channel("rsm") as (channel, target):
            yield RemoteStorageManagerClient(channel, target), SegmentObjectsClient(channel, target)

    @contextmanager
    def tier_clients(
        self,
    ) -> Iterator[tuple[RemoteStorageManager, SegmentObjects, RemoteLogMetadataManager]]:
        with self.rsm_clients() as (store, objects), self.rlmm_client() as metadata:
            yield store, objects, metadata

    @contextmanager
    def _channel(self, service: str) -> Iterator[tuple[grpc.Channel, str]]:
        target = self.address(service)
        with open_channel(target, self.security_for(target)) as channel:
            yield channel, target

    def show(self, document: object, *tables: Table | None, lines: Iterable[str] = ()) -> None:
        """Print a JSON document; or else tables, if any, and lines on standard error."""
        if self.is_json:
            print_json(document)
            return
        print_tables(*filter(None, tables), is_wide=self.is_wide)
        for line in lines:
            say(line)

    def show_each(
        self,
        items: Iterable[T],
        as_json: Callable[[T], object],
        what: str,
        as_row: Callable[[T], Cells],
    ) -> None:
        """Print a JSON document for each item as it arrives, or a table of all.

        Args:
            what: the items, in the plural, for the line that says that there are none or more.
        """
        limit = self.rows_at_most
        remaining = iter(items)
        shown: Iterable[T] = islice(remaining, limit)
        if self.limit_flag == _LAST and limit:
            latest = deque(remaining, limit + 1)
            shown, remaining = (
                islice(latest, len(latest) > limit, None),
                islice(latest, limit, None),
            )
        if self.is_json:
            for item in shown:
                print_json(as_json(item))
        elif rows := [as_row(item) for item in shown]:
            table = ("", list(rows[0]), [[*row.values()] for row in rows])
            print_tables(table, is_wide=self.is_wide)
        else:
            say(f"no {what}")
        if limit and next(remaining, None) is not None:
            self.say_cut(f"of {len(items):,} {what}" if isinstance(items, Sized) else what)

    @property
    def rows_at_most(self) -> int | None:
        """Return how many rows a list may have; None for any number."""
        is_screen = sys.stdout.isatty() and not self.is_json and bool(self.limit_flag)
        return (_SCREEN_ROWS if is_screen and self.limit is None else self.limit) or None

    def say_cut(self, what: str) -> None:
        """Say that a list was cut to `rows_at_most`."""
        which = self.limit_flag.strip("-").replace("limit", "first")
        say(f"shown: the {which} {self.rows_at_most:,} {what}; {self.limit_flag} 0 shows all")


def _limit_option(flag: str) -> Parameter:
    which = "last" if flag == _LAST else "first"
    text = f"Show the {which} N, 0 for all. Default: {_SCREEN_ROWS:,} in a terminal, else all."
    return _shared("limit", int | None, option(text, flag, min=0, metavar="N"))


def with_services(
    *services: str,
    has_data_dir: bool = False,
    has_database: bool = False,
    has_output: bool = True,
    limit: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a Call: addresses of these services, --data-dir if any, and these options.

    Args:
        limit: --limit, of a command that shows the first items, or --last; "" for neither.
    """
    shared = [_ADDRESSES[each] for each in services]
    if services or has_data_dir or has_database:
        shared.append(_DATA_DIR)
    if has_database:
        shared += _DATABASE
    if has_output:
        shared.append(_shared("output", Format, OUTPUT))
    if limit:
        shared.append(_limit_option(limit))

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            chosen = {each.name: given.pop(each.name) for each in shared if each.name in given}
            SLOW_CALLS.report = say
            try:
                with interruptible():
                    command(call=Call(**chosen, limit_flag=limit), **given)
            finally:
                SLOW_CALLS.report = None

        own = [
            each.replace(kind=Parameter.KEYWORD_ONLY)
            for each in signature(command).parameters.values()
            if each.name != "call"
        ]
        set_options(run, [*own, *shared])
        return run

    return decorated


def set_options(command: Callable[..., None], options: Sequence[Parameter]) -> None:
    """Declare the options of a command for typer, which reads its signature."""
    command.__signature__ = Signature(options)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {each.name: each.annotation for each in options}
