"""RSM with a shared access signature of the account that TEST_STORE=azure runs."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest

from services.api.errors import StoreAccessDeniedError
from services.local.data_directory import write_secret
from services.local.emulators import Azurite
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from tests.stores.conftest import StoreSettings

pytestmark = pytest.mark.deep

ALL = "rwdlac"


def signature(emulator: Azurite, permissions: str, valid: timedelta) -> str:
    """Sign what Azure calls an account SAS: for blobs, of this account, over HTTP too."""
    key = base64.b64decode(Path(emulator.options()["account_key_file"]).read_text())
    expires = (datetime.now(UTC) + valid).strftime("%Y-%m-%dT%H:%M:%SZ")
    version, services, kinds = "2021-08-06", "b", "sco"
    fields = [emulator.account, permissions, services, kinds, "", expires, "", "", version, ""]
    text = "\n".join([*fields, ""])
    signed = base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()
    named = {"sv": version, "ss": services, "srt": kinds, "sp": permissions, "se": expires}
    return urlencode({**named, "sig": signed})


def opened(
    emulator: Azurite, store_settings: StoreSettings, directory: Path, sas: str
) -> StorageBackend:
    settings = store_settings()
    assert settings.locations_file is not None
    options = {"account": emulator.account, "sas_file": str(write_secret(directory / "sas", sas))}
    text = settings.locations_file.read_text().partition("[location.options]")[0]
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    settings.locations_file.write_text("\n".join([text, "[location.options]", *lines]) + "\n")
    return build_backend(settings)


def test_a_signature_is_enough(
    emulator: Azurite, store_settings: StoreSettings, tmp_path: Path
) -> None:
    """But for deletions here: Azurite answers 500 to a batch of requests with signatures."""
    sas = signature(emulator, ALL, timedelta(hours=1))
    backend = opened(emulator, store_settings, tmp_path, sas)
    backend.put("sas/key", b"bytes")
    assert backend.get("sas/key") == b"bytes"
    assert [each.key for each in backend.list_objects("sas/")] == ["sas/key"]


@pytest.mark.parametrize(
    ("permissions", "valid"), [("rl", timedelta(hours=1)), (ALL, -timedelta(hours=1))]
)
def test_a_signature_that_does_not_allow_it_is_refused_by_name(
    emulator: Azurite,
    store_settings: StoreSettings,
    tmp_path: Path,
    permissions: str,
    valid: timedelta,
) -> None:
    sas = signature(emulator, permissions, valid)
    backend = opened(emulator, store_settings, tmp_path, sas)
    with pytest.raises(StoreAccessDeniedError, match="403") as caught:
        backend.put("sas/key", b"bytes")
    assert "sig=" not in str(caught.value)
