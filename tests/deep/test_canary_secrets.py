"""Test that no secret shows up anywhere but in its own file: one test looks everywhere."""

import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest

from demos.stage import link_log_dir
from services.api.errors import RemoteStorageError
from services.api.segments import RemoteLogSegmentState
from services.common.client_security import ClientSecurity
from services.local.data_directory import (
    CREDENTIALS,
    KEYS,
    POSTGRES,
    Store,
    read_credentials,
    running_stack,
)
from services.local.stack import BUCKET, EmbeddedStack, own_environment, rsm_settings
from services.local.stack_tls import OPERATOR, RLM
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from tests.contract.remote_storage_manager_contract import a_segment, fetched
from tests.harness.certificates import AUDIENCE, ISSUER, TokenIssuer, account
from tests.harness.eventually import eventually
from tests.harness.sediment_command import sediment_process
from tests.harness.tier import SmallTier, a_topic, segment
from tests.harness.world import BUNDLED_LOG

pytestmark = pytest.mark.deep

WRONG = "canary-of-a-wrong-secret"
ACCEPTED = "accepted token"
OF_THE_SHELL = "canary-of-a-secret-in-the-shell"

POLICY = f"""
[[grant]]
identities = ["{OPERATOR}"]
roles = ["shipper", "reader", "deleter", "sweeper", "auditor", "admin"]
topics = ["*"]

[[grant]]
identities = ["{RLM}"]
roles = ["shipper", "reader", "deleter"]
topics = ["*"]

[[grant]]
identities = ["{account("kafka", "auditor")}"]
roles = ["auditor"]
topics = ["*"]
"""

OWN_FILES = (
    CREDENTIALS,
    f"{KEYS}/*",
    f"{POSTGRES}/password",
    f"{Store.S3}/credentials.json",
    f"{Store.S3}/security.toml",
    "**/*.key",
)
"""The files that hold a secret on purpose; each is for its user only."""


class Canaries:
    """The secrets of a running stack, and where they were found."""

    def __init__(self, stack: EmbeddedStack, tokens: Mapping[str, Path] | None = None) -> None:
        self._directory = Path(stack.endpoints.data_directory)
        self.own_files = {path for pattern in OWN_FILES for path in self._directory.glob(pattern)}
        found = read_credentials(stack.endpoints)
        superuser = (self._directory / POSTGRES / "password").read_text()
        self.secrets = {
            "S3 secret key": found.s3_secret_key,
            "database password": found.database_password,
            "superuser's password": superuser,
            "wrong secret": WRONG,
            "secret of the shell": OF_THE_SHELL,
            **{name: path.read_text() for name, path in (tokens or {}).items()},
            **{f"{path.name} of {path.parent}": path.read_text() for path in self._keys()},
        }
        self._needles = {name: _needle(text) for name, text in self.secrets.items()}
        self.seen: list[str] = []

    def _keys(self) -> list[Path]:
        return [path for path in self.own_files if path.suffix == ".key"]

    def look(self, where: str, content: bytes | str) -> None:
        """Note each secret that the content has."""
        raw = content.encode() if isinstance(content, str) else content
        self.seen += [f"{name}: {where}" for name, text in self._needles.items() if text in raw]

    def look_in_files(self, *directories: Path) -> None:
        for path in (path for each in directories for path in each.rglob("*")):
            if path.is_file() and not path.is_symlink() and path not in self.own_files:
                self.look(str(path), path.read_bytes())

    def look_at_processes(self, pids: Iterable[int]) -> None:
        for pid in pids:
            for what in ("cmdline", "environ"):
                self.look(f"{what} of {pid}", Path(f"/proc/{pid}/{what}").read_bytes())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of all processes of this test."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of other programs in the shell that starts a stack."""
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD", "RSM_SECRET_KEY"):
        monkeypatch.setenv(name, OF_THE_SHELL)


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    made = TokenIssuer()
    made.write_jwks(tmp_path / "jwks.json")
    return made


@pytest.fixture
def tokens(issuer: TokenIssuer, tmp_path: Path) -> dict[str, Path]:
    """Files with tokens: one that is accepted, one without a grant, and some that are refused."""
    texts = {
        ACCEPTED: issuer.token(account("kafka", "auditor")),
        "token without a grant": issuer.token(account("kafka", "stranger")),
        "token for others": issuer.token(account("kafka", "stranger"), aud=["others"]),
        "token of nobody": "canary.token.signed-by-nobody",
    }
    files = {name: tmp_path / name.replace(" ", "-") for name in texts}
    for name, file in files.items():
        file.write_text(texts[name])
    return files


@pytest.fixture
def stack(
    server_directory: Path, tmp_path: Path, temporary: Path, issuer: TokenIssuer, shell: None
) -> Iterator[EmbeddedStack]:
    """A stack with TLS and a port for tokens, whose services log all that they can."""
    log_dir = tmp_path / "log"
    link_log_dir(BUNDLED_LOG, log_dir)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    settings = {
        **{f"{service}_POLICY_FILE": str(policy) for service in ("RSM", "RLMM", "RLM")},
        **{f"{service}_LOG_LEVEL": "DEBUG" for service in ("RSM", "RLMM", "RLM")},
        "RLMM_TOKEN_LISTEN_ADDRESS": "127.0.0.1:0",
        "RLMM_TOKEN_JWKS_FILE": str(tmp_path / "jwks.json"),
        "RLMM_TOKEN_ISSUER": ISSUER,
        "RLMM_TOKEN_AUDIENCE": AUDIENCE,
    }
    with EmbeddedStack(
        server_directory / "canaries",
        log_dirs=[log_dir],
        settings=settings,
        task_interval_ms=500,
        with_tls=True,
    ) as running:
        yield running


def security_of(stack: EmbeddedStack, token: Path | None = None) -> ClientSecurity:
    """Return the operator's certificate, or a token."""
    endpoints = stack.endpoints
    if token is not None:
        return ClientSecurity(Path(endpoints.tls_ca), token=token)
    files = endpoints.tls_ca, endpoints.tls_certificate, endpoints.tls_key
    return ClientSecurity(*map(Path, files))


def use(stack: EmbeddedStack) -> None:
    """Copy, read, delete, and fail in several ways."""
    security = security_of(stack)
    with ExitStack() as cleanup:
        rsm, rlmm = stack.endpoints.rsm, stack.endpoints.rlmm
        tier = SmallTier(
            RemoteStorageManagerClient(cleanup.enter_context(open_channel(rsm, security)), rsm),
            RemoteLogMetadataManagerClient(
                cleanup.enter_context(open_channel(rlmm, security)), rlmm
            ),
        )
        (tp,) = a_topic()
        copied = tier.copy(segment(tp, 0))
        assert fetched(tier.rsm, copied)
        with pytest.raises(RemoteStorageError):
            fetched(tier.rsm, a_segment())
        with pytest.raises(RemoteStorageError):
            tier.move(segment(tp, 1), RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        tier.move(copied, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        tier.rsm.delete_log_segment_data(copied)
        tier.move(copied, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)


def outputs_with_wrong_secrets(stack: EmbeddedStack, file: Path) -> Iterator[str]:
    """Run commands that fail for their secret, which is in the environment or in a file."""
    file.write_text(WRONG)
    two_lines = file.with_name("two-lines")
    two_lines.write_text(f"{WRONG}\n{WRONG}\n")
    endpoints = stack.endpoints
    host = endpoints.database_url.rpartition("@")[2]
    store = {**rsm_settings(stack.s3.endpoint, BUCKET, ""), "RSM_LOG_LEVEL": "DEBUG"}
    of_files = {**store, "RSM_CREDENTIALS": "files", "RSM_ACCESS_KEY_FILE": str(file)}
    for name in ("RSM_ACCESS_KEY", "RSM_SECRET_KEY"):
        del of_files[name]
    environments = {
        ("store", "probe"): [
            {**store, "RSM_SECRET_KEY": WRONG},
            {**store, "RSM_SECRET_KEY": WRONG, "RSM_BUCKET": "No"},
            {**store, "RSM_SECRET_KEYS": WRONG},
            {**store, "RSM_ACCESS_KEY": f"{WRONG}\nmore"},
            {**of_files, "RSM_SECRET_KEY_FILE": WRONG},
            {**of_files, "RSM_SECRET_KEY_FILE": str(two_lines)},
        ],
        ("partitions", "--rlmm", stack.services["rlmm"].announcement.tokens): [
            {"SEDIMENT_TLS_CA_FILE": endpoints.tls_ca, "SEDIMENT_TOKEN_FILE": WRONG},
            {"SEDIMENT_TLS_CA_FILE": endpoints.tls_ca, "SEDIMENT_TOKEN_FILE": str(two_lines)},
            {"SEDIMENT_TOKEN_FILE": WRONG},
        ],
        ("db", "current"): [
            {"RLMM_DATABASE_URL": f"postgresql://rlmm:{WRONG}@{host}"},
            {"RLMM_DATABASE_URL": f"postgresql://rlmm:some@{WRONG}@{host}"},
            {"RLMM_DATABASE_URL": f"postgres//{WRONG}@{host}"},
            {
                "RLMM_DATABASE_URL": f"postgresql://rlmm@{host}",
                "RLMM_DATABASE_PASSWORD_FILE": str(file),
            },
            *(
                {
                    "RLMM_DATABASE_URL": f"postgresql://rlmm@{host}",
                    "RLMM_DATABASE_PASSWORD_FILE": each,
                }
                for each in (WRONG, str(two_lines))
            ),
        ],
    }
    for command, each in environments.items():
        for environment in each:
            done = sediment_process(*command, environment=environment)
            assert done.returncode, f"{command} accepts a wrong secret"
            yield done.stdout + done.stderr


def output_with_an_accepted_token(stack: EmbeddedStack, token: Path) -> str:
    """Run a command that RLMM serves for its token."""
    environment = {
        "SEDIMENT_TOKEN_FILE": str(token),
        "SEDIMENT_TLS_CA_FILE": stack.endpoints.tls_ca,
    }
    address = stack.services["rlmm"].announcement.tokens
    done = sediment_process("topics", "list", "--rlmm", address, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def outputs_with_tokens(stack: EmbeddedStack, tokens: Iterable[Path]) -> Iterator[str]:
    """Run a command that is refused for its token, or that may not send it."""
    ports = stack.services["rlmm"].announcement
    assert ports.tokens
    for token in tokens:
        for address, ca in (
            (ports.tokens, stack.endpoints.tls_ca),
            (ports.address, stack.endpoints.tls_ca),
            (ports.tokens, ""),
        ):
            environment = {"SEDIMENT_TOKEN_FILE": str(token)}
            if ca:
                environment["SEDIMENT_TLS_CA_FILE"] = ca
            done = sediment_process("partitions", "--rlmm", address, environment=environment)
            assert done.returncode, f"{token} is accepted"
            yield done.stdout + done.stderr


def rows(stack: EmbeddedStack) -> Iterator[tuple[str, bytes]]:
    """Yield each table of RLMM's database as text."""
    url = read_credentials(stack.endpoints).database_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        tables = [row[0] for row in connection.execute(query)]
        for table in tables:
            with connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as copy:
                yield table, b"".join(bytes(block) for block in copy)


@pytest.mark.long
def test_secrets_are_in_their_own_files_and_nowhere_else(
    stack: EmbeddedStack, tokens: dict[str, Path], temporary: Path, tmp_path: Path
) -> None:
    canaries = Canaries(stack, tokens)
    assert len(canaries.secrets) >= 5
    assert [path for path in canaries.own_files if path.stat().st_mode & 0o077] == []
    use(stack)
    endpoints = stack.endpoints
    log = stack.services["rlm"].process.log_path
    eventually(lambda: "copied" in log.read_text(), deadline_ms=60_000)
    for output in outputs_with_wrong_secrets(stack, tmp_path / "wrong-password"):
        canaries.look("output of a command", output)
    accepted = tokens.pop(ACCEPTED)
    canaries.look("output with an accepted token", output_with_an_accepted_token(stack, accepted))
    for output in outputs_with_tokens(stack, tokens.values()):
        canaries.look("output of a command with a token", output)
    trusted = ssl.create_default_context(cafile=endpoints.tls_ca)
    for address in (endpoints.rsm_metrics, endpoints.rlmm_metrics, endpoints.rlm_metrics):
        with urllib.request.urlopen(f"https://{address}/metrics", context=trusted) as answer:
            canaries.look(f"metrics of {address}", answer.read())
    tree = {pid for root in endpoints.pids.values() for pid in _family(root)}
    assert len(tree) > len(endpoints.pids)
    canaries.look_at_processes({*tree, os.getpid()})
    for table, text in rows(stack):
        canaries.look(f"table {table}", text)
    canaries.look("the printed endpoints", repr(endpoints) + repr(read_credentials(endpoints)))
    canaries.look_in_files(Path(endpoints.data_directory), temporary)
    assert canaries.seen == []


def _needle(secret: str) -> bytes:
    """Return what no other text has: the end of a middle line, since files of PEM begin alike."""
    lines = secret.strip().splitlines()
    return lines[len(lines) // 2][-40:].encode()


def _family(pid: int) -> list[int]:
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


@pytest.mark.long
def test_up_prints_the_credentials_file_and_no_secret(server_directory: Path) -> None:
    data_dir = server_directory / "printed"
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "up",
        "--data-dir",
        str(data_dir),
        "-o",
        "json",
    ]
    with subprocess.Popen(
        command,
        env=own_environment({}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        state = eventually(lambda: running_stack(data_dir), deadline_ms=120_000)
        process.terminate()
        printed, said = process.communicate(timeout=120)
    assert state is not None
    assert state.credentials_file in printed.replace("\n", "")
    secrets = read_credentials(state)
    for secret in (secrets.s3_secret_key, secrets.database_password):
        assert secret not in printed + said


@pytest.mark.long
def test_a_secret_that_shows_up_is_found(stack: EmbeddedStack, temporary: Path) -> None:
    """The search itself can fail."""
    canaries = Canaries(stack)
    for name, secret in canaries.secrets.items():
        (temporary / "leak").write_text(f"password={secret}!")
        canaries.look_in_files(temporary)
        assert canaries.seen.pop().startswith(name)
    environment = own_environment({"RSM_SECRET_KEY": stack.credentials.s3_secret_key})
    canaries.look("environ", repr(environment))
    assert canaries.seen == ["S3 secret key: environ"]
