"""Test that gRPC knows the options that we set: it ignores an unknown one without a word."""

import re
from pathlib import Path

import grpc

SERVICES = Path(__file__).parents[3] / "services"
_OPTION = re.compile(r'\("(grpc\.[a-z0-9_.]+)", ')


def test_grpc_knows_each_option_by_its_name() -> None:
    (library,) = Path(grpc.__file__).parent.rglob("cygrpc*.so")
    known = library.read_bytes()
    files = [*(SERVICES / "rpc").rglob("*.py"), SERVICES / "common" / "client_security.py"]
    options = {name for file in files for name in _OPTION.findall(file.read_text())}
    assert len(options) > 5
    assert {name for name in options if b"%s\0" % name.encode() not in known} == set()
