"""Test how kinds of store are found, and what a location of each must have."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.rsm.backends.kinds import known_kinds
from services.rsm.backends.object_store import ObjectStorage
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings


def settings(backend: str, **more: Any) -> RsmSettings:
    return RsmSettings.model_validate({"backend": backend, "bucket": "segments", **more})


def test_the_kinds_of_this_package_are_known() -> None:
    assert {"azure", "filesystem", "gcs", "s3"} <= set(known_kinds())


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValidationError, match=r"no backend 'tape', only azure, filesystem, gcs"):
        settings("tape")


def test_a_container_needs_the_account_s_address() -> None:
    with pytest.raises(ValidationError, match="RSM_BACKEND=azure also needs RSM_ENDPOINT"):
        settings("azure")


def listed(tmp_path: Path, options: str) -> RsmSettings:
    registry = tmp_path / "locations.toml"
    registry.write_text(
        '[[location]]\nid = 1\nbackend = "gcs"\nbucket = "segments"\nprefix = ""\n'
        f"[location.options]\n{options}\n"
    )
    return settings("gcs", locations_file=registry)


def test_the_current_location_takes_its_options_from_the_file(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}')
    backend = build_backend(listed(tmp_path, f'service_account_file = "{key}"'))
    assert isinstance(backend, ObjectStorage)


def test_an_unknown_option_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no option key_file; it has service_account_file"):
        build_backend(listed(tmp_path, 'key_file = "x"'))
    missing = tmp_path / "missing.json"
    with pytest.raises(SystemExit, match=r"options.service_account_file: .*missing.json"):
        build_backend(listed(tmp_path, f'service_account_file = "{missing}"'))
