"""Check what a command printed with `-o json` against its description in tests/printed."""

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from jsonschema import Draft202012Validator

from tests.printed.fields import closed
from tests.printed.page import DOCUMENTS
from tests.printed.shared import Document

_CHECKED_LINES = 100
"""The lines of one command that are checked: all are made by the same code."""

_OF = {tuple(command.split()): each for each in DOCUMENTS for command in each.commands}


def check_printed(arguments: Sequence[str], output: str) -> None:
    """Assert that a command's JSON has each described field and no other."""
    if not output or not any(pair in _JSON for pair in pairwise(arguments)):
        return
    document = _document_of(arguments)
    printed = output.splitlines()[:_CHECKED_LINES] if document.is_listed else [output]
    for text in printed:
        errors = _validator(document.name).iter_errors(json.loads(text))
        problems = [f"{error.json_path}: {error.message}" for error in errors]
        assert not problems, (
            f"`sediment {' '.join(arguments)}` printed what tests/printed does not describe; "
            f"describe it there and run `make docs`: {problems}"
        )


_JSON = {(option, "json") for option in ("-o", "--output")}


def _document_of(arguments: Sequence[str]) -> Document:
    """Find what a command prints; options of all commands may come before its name."""
    for words in (*pairwise(arguments), *((each,) for each in arguments)):
        if words in _OF:
            return _OF[words]
    raise AssertionError(f"tests/printed does not describe `sediment {' '.join(arguments)}`")


@cache
def _validator(name: str) -> Draft202012Validator:
    (document,) = (each for each in DOCUMENTS if each.name == name)
    return Draft202012Validator(closed(document.schema()))
