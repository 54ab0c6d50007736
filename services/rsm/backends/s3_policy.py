"""Describe what a location asks of its S3 store: class of storage, encryption."""

import base64
import json
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""Classes of storage whose objects cannot be read before they are restored."""

SSE = "x-amz-server-side-encryption"
STORAGE_CLASS = "x-amz-storage-class"

_MAX_CONTEXT_BYTES = 8192
"""The most that AWS KMS accepts."""

_ContextText = Annotated[str, Field(min_length=1, max_length=1024)]


class S3Policy(BaseModel):
    """The properties of a location that only an S3 store has.

    Attributes:
        storage_class: "": the bucket's own.
        sse: how the store is to encrypt; "": as the bucket does by itself.
        sse_kms_key_id: "": the key that the store uses by default.
        sse_kms_context: pairs that the key service writes to its log, and must be given on a read
            of the key; the store keeps them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    storage_class: str = Field(default="", pattern=r"^[A-Z0-9_]{0,64}$")
    sse: Literal["", "AES256", "aws:kms"] = ""
    sse_kms_key_id: str = Field(default="", pattern=r"^[!-~]{0,2048}$")
    sse_kms_context: dict[_ContextText, _ContextText] = {}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.storage_class in ARCHIVES:
            raise ValueError(
                f'storage_class = "{self.storage_class}": its objects cannot be read before they '
                "are restored; choose a class that is read at once, for example GLACIER_IR"
            )
        if (self.sse_kms_key_id or self.sse_kms_context) and self.sse != "aws:kms":
            raise ValueError('sse_kms_key_id and sse_kms_context go with sse = "aws:kms"')
        if len(_context_json(self.sse_kms_context)) > _MAX_CONTEXT_BYTES:
            raise ValueError(f"sse_kms_context has over {_MAX_CONTEXT_BYTES} bytes")
        return self

    def set_properties(self) -> list[str]:
        """Return the names of the properties that are set."""
        return [name for name in S3Policy.model_fields if getattr(self, name)]

    def write_headers(self) -> Mapping[str, str]:
        """Return the headers of each request that creates an object."""
        headers = {STORAGE_CLASS: self.storage_class, SSE: self.sse}
        headers[f"{SSE}-aws-kms-key-id"] = self.sse_kms_key_id
        if self.sse_kms_context:
            context = base64.b64encode(_context_json(self.sse_kms_context))
            headers[f"{SSE}-context"] = context.decode("ascii")
        return {name: value for name, value in headers.items() if value}


def _context_json(context: Mapping[str, str]) -> bytes:
    return json.dumps(context, sort_keys=True, separators=(",", ":")).encode("ascii")
