"""Close SeaweedFS's ports other than S3's to everything but its own parts."""

import secrets
from pathlib import Path

from services.local.certificates import CertificateAuthority
from services.local.data_directory import write_secret

_JWT = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
"""What volume server and filer require over HTTP: a token of a key that only this server has."""

_MUTUAL_TLS = ("grpc.master", "grpc.volume", "grpc.filer", "grpc.s3", "grpc.client")
"""The gRPC servers and the client, which identify each other by a certificate."""

_OVER_HTTP = ("https.master",)
"""The master has no tokens: over HTTP it requires the same certificate."""


def write_security(directory: Path) -> None:
    """Write security.toml, which weed reads in its working directory, with new keys.

    Without it any user of this machine could list, read and delete objects without S3 keys.
    """
    authority = CertificateAuthority(directory / "tls")
    own = authority.issue("weed")
    lines = []
    for table in _JWT:
        lines += [f"[{table}]", f'key = "{secrets.token_urlsafe(32)}"']
    lines += ["[filer.expose_directory_metadata]", "enabled = false"]
    lines += ["[grpc]", f'ca = "{authority.certificate}"']
    for table in (*_MUTUAL_TLS, *_OVER_HTTP):
        lines += [f"[{table}]", f'cert = "{own.certificate}"', f'key = "{own.key}"']
        if table in _OVER_HTTP:
            lines.append(f'ca = "{authority.certificate}"')
    write_secret(directory / "security.toml", "\n".join(lines) + "\n")
