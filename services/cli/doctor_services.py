"""Check what the services answer: their state, clocks, certificates, and the brokers' view."""

import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509

from services.api.remote_log_manager import CopyLag, Problem
from services.cli.connections import connected_rlm, connected_rlmm, security_options
from services.cli.doctor_findings import Check, Finding, Level, clock_finding, store_findings
from services.cli.endpoints import probed
from services.common.client_security import ClientSecurity, each_address
from services.common.release import release
from services.rpc.client.probe import now_ms
from services.rpc.tls import TlsFileError, TlsFiles, read_tls
from services.views.endpoints import Endpoint, Severity, is_ready

EXPIRES_SOON = timedelta(days=14)
_CONNECT_TIMEOUT_S = 3.0
_SHOWN = 3

_NEXT_OF_UNREADY = {
    "rsm": "run `sediment store probe` with RSM's settings, or read RSM's log",
    "rlmm": "run `sediment db check` with RLMM's settings, or read RLMM's log",
    "rlm": "read RLM's log",
}


def service_checks(addresses: Mapping[str, str], data_dir: Path | None) -> dict[str, Check]:
    """Return the checks of the services at these addresses, by name."""
    if not any(addresses.values()):
        return {}
    files = security_options([*addresses.values()], data_dir).files
    checks: dict[str, Check] = {
        "services": partial(_check_services, addresses, data_dir),
        "certificates": partial(_check_certificates, addresses, files),
    }
    if addresses["rlm"]:
        checks["brokers"] = partial(_check_brokers, addresses["rlm"], data_dir)
    return checks


def _check_services(addresses: Mapping[str, str], data_dir: Path | None) -> Iterator[Finding]:
    endpoints = probed(addresses, data_dir)
    yield from state_findings(endpoints)
    for endpoint in endpoints:
        ahead_ms = endpoint.state.clock_ahead_ms
        if ahead_ms is not None:
            whose = f"{endpoint.service} at {endpoint.address}"
            yield clock_finding("clocks", whose, ahead_ms, endpoint.state.clock_error_ms)
    if is_ready(endpoints, "rlmm"):
        yield from _check_database_clock(addresses["rlmm"], data_dir)


def state_findings(endpoints: Sequence[Endpoint]) -> Iterator[Finding]:
    """Judge the state of each address, and whether all are of this release."""
    for endpoint in endpoints:
        yield _state_of(endpoint)
    yield from store_findings("store", dict.fromkeys(n for e in endpoints for n in e.state.notes))
    releases = {each.state.version for each in endpoints if each.state.version}
    if len({*releases, release()}) > 1:
        text = f"several releases run: {', '.join(sorted(releases))}; this is {release()}"
        yield Finding("services", Level.WARN, text, "finish the upgrade or the rollback")


def _state_of(endpoint: Endpoint) -> Finding:
    name, text = endpoint.service, endpoint.text
    if not endpoint.address:
        return Finding(name, Level.SKIP, text)
    if endpoint.severity is Severity.OK:
        return Finding(name, Level.OK, text)
    problem = endpoint.state.problem
    if not problem:
        return Finding(name, Level.FAIL, text, _NEXT_OF_UNREADY[name])
    if problem.startswith(("UNAUTHENTICATED", "PERMISSION_DENIED")):
        return Finding(name, Level.FAIL, text, "run `sediment policy check FILE --as IDENTITY`")
    next_step = f"check that {name.upper()} runs there, the port, and the TLS options"
    return Finding(name, Level.FAIL, text, next_step)


def _check_database_clock(address: str, data_dir: Path | None) -> Iterator[Finding]:
    """Judge the database's clock, which RLMM reads with each partition."""
    with connected_rlmm(address, data_dir) as rlmm:
        before_ms = now_ms()
        page = rlmm.list_partitions(page_size=1)
        after_ms = now_ms()
    for partition in page.partitions[:1]:
        ahead_ms = partition.read_at_ms - (before_ms + after_ms) // 2
        yield clock_finding("clocks", "the database", ahead_ms, (after_ms - before_ms + 1) // 2)


def _check_certificates(addresses: Mapping[str, str], files: ClientSecurity) -> Iterator[Finding]:
    """Check this client's files, and the certificates that the services show."""
    name = "certificates"
    if files.ca is None:
        yield plaintext_finding(name, addresses)
        return
    yield file_finding(name, TlsFiles(files.certificate, files.key, files.ca))
    for address in [each for text in addresses.values() if text for each in each_address(text)]:
        try:
            shown = shown_certificate(address)
        except (OSError, ValueError) as e:
            text = f"{address} shows none: {e}"
            yield Finding(name, Level.FAIL, text, "check that the service serves TLS there")
        else:
            yield expiry_finding(name, address, shown.not_valid_after_utc)


def plaintext_finding(check: str, addresses: Mapping[str, str]) -> Finding:
    """Judge that the services have no TLS: it is sound within one machine."""
    text = "plaintext: every user who reaches the ports can read and delete everything"
    if _are_local(addresses):
        return Finding(check, Level.OK, text)
    return Finding(check, Level.WARN, text, "set up TLS: docs/run/security.md")


def _are_local(addresses: Mapping[str, str]) -> bool:
    hosts = [each.rpartition(":")[0] for text in addresses.values() for each in each_address(text)]
    return {*hosts} <= {"", "localhost", "127.0.0.1", "[::1]"}


def file_finding(check: str, files: TlsFiles) -> Finding:
    """Check PEM files: that they can be used together, and for how long."""
    try:
        material = read_tls(files)
    except TlsFileError as e:
        return Finding(check, Level.FAIL, str(e), "replace the file; a running service reads it")
    if files.certificate is None:
        return Finding(check, Level.OK, f"{files}: can be used")
    return expiry_finding(
        check, str(files.certificate), datetime.fromtimestamp(material.expires_at, UTC)
    )


def expiry_finding(check: str, whose: str, ends: datetime) -> Finding:
    """Judge the end of a certificate."""
    left = ends - datetime.now(UTC)
    text = f"{whose}: valid until {ends:%Y-%m-%d %H:%M} UTC"
    if left <= timedelta():
        return Finding(check, Level.FAIL, f"{whose}: expired at {ends:%Y-%m-%d %H:%M} UTC", "renew")
    if left < EXPIRES_SOON:
        return Finding(check, Level.WARN, f"{text}, {left.days} days", "renew it")
    return Finding(check, Level.OK, text)


def shown_certificate(address: str) -> x509.Certificate:
    """Read the certificate that a server shows, of any authority.

    Raises:
        OSError: no server listens there, or not with TLS.
        ValueError: what it shows is no certificate.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # gRPC verifies it when it connects; here only its end counts
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    where = (host.strip("[]"), int(port))
    with (
        socket.create_connection(where, _CONNECT_TIMEOUT_S) as opened,
        context.wrap_socket(opened, server_hostname=host) as secured,
    ):
        return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")


def _check_brokers(addresses: str, data_dir: Path | None) -> Iterator[Finding]:
    """Check what each RLM knows of its broker's log directories and partitions."""
    for address in each_address(addresses):
        with connected_rlm(address, data_dir) as rlm:
            lag = rlm.copy_lag()
            problems = rlm.describe_partitions(page_size=1).log_dir_problems
        yield from broker_findings(address, lag, problems)


def broker_findings(address: str, lag: CopyLag, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Judge an RLM's copies, and the problems of its log directories."""
    yield _copies_of(address, lag)
    for problem in problems[:_SHOWN]:
        text = f"{problem.path}: {problem.message}"
        yield Finding("brokers", Level.WARN, text, _partitions(address))


def _copies_of(address: str, lag: CopyLag) -> Finding:
    used = lag.local_retention_used or 0.0
    if used >= 1:
        text = "the broker may delete data that is not in the tier"
        return Finding("brokers", Level.FAIL, f"{address}: {text}", _partitions(address))
    if lag.held_back_partitions:
        text = f"{lag.held_back_partitions:,} of {lag.partitions:,} partitions are held back"
        return Finding("brokers", Level.WARN, f"{address}: {text}", _partitions(address))
    if lag.earlier_histories:
        text = f"{lag.earlier_histories:,} partitions have an earlier history in the tier"
        return Finding("brokers", Level.WARN, f"{address}: {text}", _partitions(address))
    if not lag.partitions:
        text = "leads no partition: it copies nothing, or the broker does with the plugin"
        return Finding("brokers", Level.OK, f"{address}: {text}")
    text = f"broker {lag.broker_id}, leads {lag.partitions:,} partitions, none is held back"
    if lag.unchecked_partitions:
        text += f"; {lag.unchecked_partitions:,} changed since their latest pass"
    return Finding("brokers", Level.OK, f"{address}: {text}")


def _partitions(address: str) -> str:
    return f"sediment partitions --rlm {address}"
