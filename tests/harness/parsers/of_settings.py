"""Read fuzzed files that operators mount, RSM's marker, and answers with S3 credentials."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from minio.credentials.providers import (
    AssumeRoleProvider,
    AWSConfigProvider,
    IamAwsProvider,
    Provider,
    WebIdentityProvider,
)

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.common.bounded_file import SecretFileError, read_secret
from services.local.certificates import CertificateAuthority
from services.rlm.kafka_admin.security import (
    KafkaSecurity,
    KafkaSecurityError,
    SecurityProtocol,
)
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.s3_credentials import SdkCredentials
from services.rsm.locations import Location, Locations
from services.rsm.locations_file import registered_locations
from services.rsm.marker import MARKER_NAME
from services.rsm.probe import ProbeReport, StoreProbe
from services.rsm.settings import RsmSettings
from services.rsm.startup import StartUp
from tests.harness.parsers.of_stores import OneAnswer, Pools
from tests.harness.parsers.target import Target, written

_LOCATIONS = b"""
[[location]]
id = 1
backend = "s3"
endpoint = "store:9000"
region = "us-east-1"
bucket = "segments"
prefix = "old/"

[[location]]
id = 7
backend = "filesystem"
directory = "/srv/objects"
prefix = ""
"""


def _read_locations(data: bytes) -> None:
    directory = written(data, "locations.toml")
    settings = RsmSettings.model_validate(
        {
            "backend": "filesystem",
            "directory": "/srv/new",
            "location_id": 2,
            "locations_file": directory,
        }
    )
    ids = [location.id for location in registered_locations(settings)]
    assert len(ids) == len(set(ids))


def _read_secret(data: bytes) -> None:
    assert read_secret(written(data, "secret")).strip()


_MARKER = b'{"format_version": 1, "deployment_id": "ours", "location_id": 1}\n'


def _read_marker(data: bytes) -> None:
    """Check a store whose marker is the bytes: another deployment's must be refused."""
    store = FilesystemStorage(written(data, MARKER_NAME).parent)
    location = Location(1, store, "")
    for deployment_id in ("", "ours"):
        StartUp(Locations(location), _NoProbe, deployment_id, marker_required=True).inspect()


class _NoProbe(StoreProbe):
    def run(self) -> ProbeReport:
        """Report nothing: the marker was read before."""
        return ProbeReport(self._location, (), frozenset())


@cache
def _pem() -> tuple[bytes, bytes, bytes]:
    with TemporaryDirectory() as directory:
        authority = CertificateAuthority(Path(directory))
        issued = authority.issue("rlm")
        certificate, key = issued.certificate.read_bytes(), issued.key.read_bytes()
        return authority.certificate.read_bytes(), certificate, key


def _read_kafka_certificates(data: bytes) -> None:
    """Put the bytes in the place of the authority, the certificate or the key."""
    place, content = (data[0] % 3, data[1:]) if data else (0, b"")
    files = [content if place == number else pem for number, pem in enumerate(_pem())]
    names = ("kafka-ca.crt", "kafka-tls.crt", "kafka-tls.key")
    paths = [written(each, name) for each, name in zip(files, names, strict=True)]
    made = KafkaSecurity(
        SecurityProtocol.SSL,
        ssl_ca_file=paths[0],
        ssl_certificate_file=paths[1],
        ssl_key_file=paths[2],
    ).connection_options()
    assert made.ssl_context is not None


_STS = "http://sts.example.org"
_PROVIDERS: Sequence[Callable[[Pools, bytes], Provider]] = (
    lambda http, _: IamAwsProvider(custom_endpoint=_STS, relative_uri="/", http_client=http),
    lambda http, _: IamAwsProvider(http_client=http),
    lambda http, _: WebIdentityProvider(
        jwt_provider_func=lambda: {"access_token": "token"},
        sts_endpoint=_STS,
        http_client=http,
    ),
    lambda http, _: AssumeRoleProvider(
        sts_endpoint=_STS, access_key="key", secret_key="secret", http_client=http
    ),
    lambda _, body: AWSConfigProvider(filename=str(written(body, "credentials"))),
)
_STATUSES = (200, 403)


def _read_credentials(data: bytes) -> None:
    """Take the source from the first byte, the status of its answer from the second one."""
    if len(data) < 2:
        return
    status, body = _STATUSES[data[1] % len(_STATUSES)], data[2:]
    http = Pools(OneAnswer(status, {}, body))
    provider = _PROVIDERS[data[0] % len(_PROVIDERS)]
    found = SdkCredentials("the source", lambda: provider(http, body)).retrieve()
    for text in (found.access_key, found.secret_key, found.session_token or "-"):
        assert isinstance(text, str)
        assert text.isascii()
        assert text.isprintable()


def _credentials() -> Sequence[bytes]:
    of_json = (
        b'{"Code": "Success", "AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t", '
        b'"Expiration": "2030-01-02T03:04:05Z"}'
    )
    of_xml = (
        b"<%bResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><%bResult><Credentials>"
        b"<AccessKeyId>a</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t"
        b"</SessionToken><Expiration>2030-01-02T03:04:05Z</Expiration></Credentials></%bResult>"
        b"</%bResponse>"
    )
    web, role = b"AssumeRoleWithWebIdentity", b"AssumeRole"
    of_file = b"[default]\naws_access_key_id = a\naws_secret_access_key = s\n"
    bodies = (of_json, of_json, of_xml % ((web,) * 4), of_xml % ((role,) * 4), of_file)
    return [bytes([number, 0]) + body for number, body in enumerate(bodies)]


TARGETS = (
    Target("locations_file", _read_locations, (SystemExit,), lambda: [_LOCATIONS]),
    Target("secret_file", _read_secret, (SecretFileError,), lambda: [b"secret\n"]),
    Target("location_marker", _read_marker, (RemoteStorageError,), lambda: [_MARKER]),
    Target(
        "kafka_certificates",
        _read_kafka_certificates,
        (KafkaSecurityError,),
        lambda: [bytes([number]) + pem for number, pem in enumerate(_pem())],
    ),
    Target("s3_credentials", _read_credentials, (RetriableRemoteStorageError,), _credentials),
)
