"""Read the options of Spark's data sources; an error names the option."""

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from services.api.errors import InvalidRequestError
from services.api.ids import uuid_from_text
from services.api.validation import INT32_MAX, INT64_MAX
from services.common.addresses import each_address
from services.common.client_security import ClientSecurity, SecurityOptions
from services.local.data_directory import DataDirectoryError, StackEndpoints, running_stack
from spark_jobs.connections import Services

CONNECTION = (
    "rlmm",
    "rsm",
    "dataDir",
    "tlsCa",
    "tlsCertificate",
    "tlsKey",
    "tokenFile",
    "plaintext",
    "retryForS",
)
"""The options with which every source connects to the services."""

_FILES = ("tlsCa", "tlsCertificate", "tlsKey", "tokenFile")
_SECURITY = ", ".join((*_FILES, "plaintext"))
_RETRY_FOR_S = 30.0

T = TypeVar("T")


class SourceOptions:
    """The options of one read; names are not case-sensitive, as in Spark."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        """Take the options that were given.

        Raises:
            InvalidRequestError: an option is not one of `known`; names the closest one.
        """
        names = {name.lower(): name for name in known}
        if "provider" in given:
            raise bad_option(
                "provider",
                "Spark forgets the options of a table; write CREATE TEMPORARY VIEW ... USING",
            )
        for name in given:
            if name.lower() not in names:
                close = get_close_matches(name.lower(), names, n=1)
                meant = f"did you mean {names[close[0]]}? " if close else ""
                raise InvalidRequestError(
                    f"option {name}: there is no such option; {meant}There are "
                    f"{', '.join(names.values())}"
                )
        self._given = {name.lower(): value.strip() for name, value in given.items()}

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), "") or default

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        text, allowed = self.text(name, default).lower(), list(choices)
        if text not in allowed:
            raise bad_option(name, f"must be one of {', '.join(allowed)}, is {text[:64]!r}")
        return text

    def boolean(self, name: str) -> bool:
        return self.choice(name, ("true", "false"), "false") == "true"

    def number(
        self, name: str, default: int | None, at_least: int = 0, at_most: int = INT64_MAX
    ) -> int | None:
        text = self.text(name)
        return _number(name, text, at_least, at_most) if text else default

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0.0 <= value < float("inf"):
            raise bad_option(name, f"must be a number of seconds, is {text[:64]!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Read names with commas between them; none if the option was not given."""
        return tuple(each.strip() for each in self.text(name).split(",") if each.strip())

    def numbers(self, name: str) -> tuple[int, ...]:
        return tuple(_number(name, each, 0, INT32_MAX) for each in self.texts(name))

    def uuids(self, name: str) -> tuple[UUID, ...]:
        return tuple(uuid_from_text(each, f"option {name}") for each in self.texts(name))

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Raise InvalidRequestError if one of these was given."""
        for name in names:
            if self.text(name):
                raise bad_option(name, reason)

    def check_connection(self) -> None:
        """Check the values that need no file and no other machine."""
        self._security()
        self.seconds("retryForS", _RETRY_FOR_S)

    def services(self, *needed: str) -> Services:
        """Return how to connect to the services that are needed, "rlmm" or "rsm".

        An address that was not given is that of the environment (SEDIMENT_RLMM, SEDIMENT_RSM), or
        of the `sediment up` that runs on this machine. The files of TLS come from the same places.
        """
        stack: StackEndpoints | None = None
        addresses = {name: self._address(name) for name in needed}
        security = self._security()
        if not all(addresses.values()) or not security.is_chosen:
            stack = self._stack(not all(addresses.values()))
        for name, address in addresses.items():
            addresses[name] = address or self._address_in(stack, name)
        every = [each for address in addresses.values() for each in each_address(address)]
        if not security.is_chosen and stack is not None and stack.serves(every):
            security = stack.security
        try:
            for address in addresses.values():
                security.security_for(address)
        except InvalidRequestError as e:
            raise InvalidRequestError(f"options {_SECURITY}: {e}") from e
        retry_for_s = self.seconds("retryForS", _RETRY_FOR_S)
        rlmm, rsm = addresses.get("rlmm", ""), addresses.get("rsm", "")
        return Services(rlmm, rsm, retry_for_s, security)

    def _address(self, name: str) -> str:
        return self.text(name) or os.environ.get(f"SEDIMENT_{name.upper()}", "")

    def _stack(self, is_needed: bool) -> StackEndpoints | None:
        data_dir = self.text("dataDir")
        try:
            return running_stack(Path(data_dir) if data_dir else None)
        except DataDirectoryError as e:
            if not is_needed:
                return None
            raise bad_option("dataDir", str(e)) from e

    def _address_in(self, stack: StackEndpoints | None, name: str) -> str:
        address = "" if stack is None else str(getattr(stack, name))
        if address:
            return address
        raise bad_option(
            name,
            "give HOST:PORT; no `sediment up` runs on "
            f"{self.text('dataDir') or 'the default data directory'} of this machine",
        )

    def _security(self) -> SecurityOptions:
        """Read what was chosen: options, else variables of the environment."""
        paths = [Path(text) if (text := self.text(name)) else None for name in _FILES]
        try:
            chosen = SecurityOptions(ClientSecurity(*paths), self.boolean("plaintext"))
            return chosen if chosen.is_chosen else SecurityOptions.from_environment(os.environ)
        except InvalidRequestError as e:
            raise InvalidRequestError(f"options {_SECURITY}: {e}") from e


def bad_option(name: str, reason: str) -> InvalidRequestError:
    """Make the error of an option's value."""
    return InvalidRequestError(f"option {name}: {reason}")


def _number(name: str, text: str, at_least: int, at_most: int) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(INT64_MAX))
    if not is_number or not at_least <= int(text) <= at_most:
        raise bad_option(name, f"must be a whole number, {at_least} to {at_most}, is {text[:64]!r}")
    return int(text)
