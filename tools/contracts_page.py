"""Write what only the site's page of contracts has: services, calls, messages and enums."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

from hatch_build import PROTOS, google_protos

_PACKAGE = "tieredstorage.v1"
# The numbers of fields in descriptor.proto, of which paths to comments are made.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _VALUES, _METHODS = 2, 3, 2, 2

Place = tuple[int, ...]
"""Where something is in a file, as descriptor.proto numbers it."""


def contracts_markdown() -> str:
    """Return what follows the page's introduction."""
    lines: list[str] = []
    # Files with a service first: the others have what these share.
    for file in sorted(_files(), key=lambda file: not file.service):
        if not file.service:
            lines.append("## Shared messages\n")
        lines += _File(file).lines()
    return "\n".join(lines)


def _files() -> list[FileDescriptorProto]:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "descriptors"
        sources = sorted(map(str, PROTOS.rglob("*.proto")))
        command = [sys.executable, "-m", "grpc_tools.protoc", "--include_source_info"]
        includes = [f"-I{PROTOS}", f"-I{google_protos()}", f"--descriptor_set_out={out}"]
        subprocess.run([*command, *includes, *sources], check=True)
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


class _File:
    """The part of the page about one file."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {
            tuple(location.path): location.leading_comments
            for location in file.source_code_info.location
        }

    def lines(self) -> Iterator[str]:
        for number, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICES, number))
        for number, message in enumerate(self._file.message_type):
            yield from self._message(message, message.name, (_MESSAGES, number))
        for number, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, enum.name, (_ENUMS, number))

    def _service(self, service: ServiceDescriptorProto, path: Place) -> Iterator[str]:
        yield f"## {service.name}\n\n{self._text(path)}\n"
        for number, method in enumerate(service.method):
            yield from self._method(method, (*path, _METHODS, number))

    def _method(self, method: MethodDescriptorProto, path: Place) -> Iterator[str]:
        request = "stream of " * method.client_streaming + _link(method.input_type)
        response = "stream of " * method.server_streaming + _link(method.output_type)
        yield f"### {method.name}\n\n{request} → {response}\n\n{self._text(path)}\n"

    def _message(self, message: DescriptorProto, name: str, path: Place) -> Iterator[str]:
        yield f"#### {name}\n\n{self._text(path)}\n"
        rows = [
            (f"`{field.name}`", _type(field, message), self._cell((*path, _FIELDS, number)))
            for number, field in enumerate(message.field)
        ]
        yield from _table(("field", "type", "meaning"), rows)
        for number, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield from self._message(nested, f"{name}.{nested.name}", (*path, _NESTED, number))

    def _enum(self, enum: EnumDescriptorProto, name: str, path: Place) -> Iterator[str]:
        yield f"#### {name}\n\n{self._text(path)}\n"
        rows = [
            (f"`{value.name}`", str(value.number), self._cell((*path, _VALUES, number)))
            for number, value in enumerate(enum.value)
        ]
        yield from _table(("value", "number", "meaning"), rows)

    def _text(self, path: Place) -> str:
        paragraphs = self._comments[path].strip().split("\n\n")
        return _escaped("\n\n".join(" ".join(text.split()) for text in paragraphs))

    def _cell(self, path: Place) -> str:
        return _escaped(" ".join(self._comments[path].split())).replace("|", "\\|")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        every = [columns, ["---"] * len(columns), *rows]
        yield "\n".join(f"| {' | '.join(row)} |" for row in every) + "\n"


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """Return a field's type as the file has it."""
    names = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    shown = _link(field.type_name) if field.type_name else names
    entries = {n.name: n for n in message.nested_type if n.options.map_entry}
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map of {_type(key, entry)} to {_type(value, entry)}"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {shown}"
    return f"optional {shown}" if field.proto3_optional else shown


def _link(type_name: str) -> str:
    """Link a type of these files to its section; name any other."""
    name = type_name.removeprefix(f".{_PACKAGE}.")
    if name == type_name:
        return f"`{type_name.removeprefix('.')}`"
    return f"[{name}](#{name.lower().replace('.', '')})"


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


if __name__ == "__main__":
    sys.stdout.write(contracts_markdown())
