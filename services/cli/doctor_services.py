"""Check what the services answer: their state, clocks, certificates, and the brokers' view."""

import socket
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice

from cryptography import x509

from services.api.errors import (
    DeletionRefusedError,
    NotServedError,
    PermissionDeniedError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.local_retention import LocalRetentionChange
from services.api.offset_queries import OffsetService
from services.api.remote_log_manager import CopyLag, Problem
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.segment_objects import SegmentKey
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import (
    LOCAL_RETENTION_OWNER,
    LocalRetentionOwner,
    StoredTopicConfig,
)
from services.cli.connections import Call
from services.cli.doctor_findings import (
    Check,
    Finding,
    Level,
    clock_finding,
    finding_of,
    store_findings,
)
from services.common.addresses import other_machine, split_address
from services.common.client_security import ClientSecurity
from services.common.quantities import counted
from services.common.release import release
from services.rpc.client.probe import now_ms
from services.rpc.tls import TlsFileError, TlsFiles, read_tls
from services.views.endpoints import Endpoint, ServiceAddresses, Severity, is_ready
from services.views.texts import age_text
from services.views.tier import UNMAINTAINED_MS, lag_line, upkeep_lines
from services.views.tier_facts import Bounds, tier_facts
from services.views.topics import TopicFigures, sum_topics
from services.workflows.deployment_state import read_head

EXPIRES_SOON = timedelta(days=14)
_CONNECT_TIMEOUT_S = 3.0
_CONNECTIONS = 16
_SHOWN = 3
_SAMPLE = 100

_NEXT_OF_UNREADY = {
    "rsm": "run `sediment store probe`, or read RSM's log",
    "rlmm": "run `sediment db check`, or read RLMM's log",
    "rlm": "read RLM's log",
}


def service_checks(call: Call, addresses: ServiceAddresses) -> list[Check]:
    """Return the checks of the services at these addresses."""
    known = [address for _, address in addresses.pairs() if address]
    if not known:
        return []
    files = call.security_options(known).files
    checks = [
        Check("services", partial(_check_services, call, addresses)),
        Check("certificates", partial(_check_certificates, known, files)),
    ]
    if addresses.rlmm:
        only_rlmm = ServiceAddresses(rlmm=addresses.rlmm)
        checks.append(Check("upkeep", partial(_check_upkeep, call, only_rlmm)))
    if addresses.rsm:
        checks.append(Check("kept state", partial(_check_kept_state, call)))
    if addresses.rlm:
        only_rlm = ServiceAddresses(rlm=addresses.rlm)
        checks.append(Check("brokers", partial(_check_brokers, call, only_rlm)))
        checks.append(Check("readers", partial(_check_readers, call, only_rlm)))
    if addresses.rsm and addresses.rlmm:
        checks.append(Check("keys", partial(_check_keys, call)))
    if addresses.rlm and addresses.rlmm:
        checks.append(Check("local retention", partial(_check_local_retention, call)))
    return checks


def _check_services(call: Call, addresses: ServiceAddresses) -> Iterator[Finding]:
    with call.connect(addresses) as tier:
        endpoints = tier.probe()
        yield from state_findings(endpoints)
        for endpoint in endpoints:
            ahead_ms = endpoint.state.clock_ahead_ms
            if ahead_ms is not None:
                whose = f"{endpoint.service} at {endpoint.address}"
                yield clock_finding("clocks", whose, ahead_ms, endpoint.state.clock_error_ms)
        if tier.metadata is not None and is_ready(endpoints, "rlmm"):
            yield from _check_database_clock(tier.metadata)


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
        return Finding(name, Level.FAIL, text, _NEXT_OF_UNREADY[name], is_no_answer=True)
    if problem.startswith(("UNAUTHENTICATED", "PERMISSION_DENIED")):
        return Finding(name, Level.FAIL, text, "run `sediment policy check FILE --as IDENTITY`")
    next_step = f"check that {name.upper()} runs there, the port, and the TLS options"
    return Finding(name, Level.FAIL, text, next_step)


def _check_database_clock(rlmm: RemoteLogMetadataManager) -> Iterator[Finding]:
    """Judge the database's clock, which RLMM reads with each partition."""
    before_ms = now_ms()
    page = rlmm.list_partitions(page_size=1)
    after_ms = now_ms()
    for partition in page.partitions[:1]:
        ahead_ms = partition.read_at_ms - (before_ms + after_ms) // 2
        yield clock_finding("clocks", "the database", ahead_ms, (after_ms - before_ms + 1) // 2)


def _check_upkeep(call: Call, addresses: ServiceAddresses) -> Iterator[Finding]:
    """Check what RLMM knows of checks of the store, and of the database's maintenance."""
    with call.connect(addresses) as tier:
        assert tier.metadata is not None
        for line in upkeep_lines(tier_facts(tier.metadata, Bounds())):
            yield finding_of(line.what, line)


def _check_kept_state(call: Call) -> Iterator[Finding]:
    """Check how old the state is that a rebuild would find in the bucket."""
    with call.rsm_clients() as (_, objects):
        head = read_head(objects)
    kept = "what `sediment db rebuild` needs besides the segments"
    next_step = "run `sediment db maintain --rsm HOST:PORT` every day"
    if head is None:
        yield Finding("kept state", Level.SKIP, f"never kept: {kept}", next_step)
        return
    age_ms = now_ms() - head.kept_at_ms
    is_late = age_ms > UNMAINTAINED_MS
    text = f"{kept} was kept in the bucket {age_text(age_ms)} ago"
    level = Level.WARN if is_late else Level.OK
    yield Finding("kept state", level, text, next_step if is_late else "")


def _check_certificates(addresses: Sequence[str], files: ClientSecurity) -> Iterator[Finding]:
    """Check this client's files, and the certificates that the services show."""
    name = "certificates"
    if files.ca is None:
        yield plaintext_finding(name, addresses)
        return
    yield file_finding(name, TlsFiles(files.certificate, files.key, files.ca))
    for address in addresses:
        try:
            shown = shown_certificate(address)
        except (OSError, ValueError) as e:
            text = f"{address} shows none: {e}"
            yield Finding(name, Level.FAIL, text, "check that the service serves TLS there")
        else:
            yield expiry_finding(name, address, shown.not_valid_after_utc)


def plaintext_finding(check: str, addresses: Sequence[str]) -> Finding:
    """Judge that the services have no TLS: it is sound within one machine."""
    text = "plaintext: every user who reaches the ports can read and delete everything"
    if all(other_machine(address) is None for address in addresses):
        return Finding(check, Level.OK, text)
    return Finding(check, Level.WARN, text, "set up TLS: docs/run/security.md")


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
    text = f"{whose}: valid until {ends:%Y-%m-%dT%H:%M:%SZ}"
    if left <= timedelta():
        text = f"{whose}: expired at {ends:%Y-%m-%dT%H:%M:%SZ}"
        return Finding(check, Level.FAIL, text, "renew it")
    if left < EXPIRES_SOON:
        return Finding(check, Level.WARN, f"{text}, {counted(left.days, 'day')}", "renew it")
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


def _check_brokers(call: Call, addresses: ServiceAddresses) -> Iterator[Finding]:
    """Check what each RLM knows of its broker's log directories and partitions."""
    with call.connect(addresses) as tier:
        for address, rlm in tier.logs.items():
            problems = rlm.describe_partitions(page_size=1).log_dir_problems
            yield from broker_findings(address, rlm.copy_lag(), problems)


def _check_readers(call: Call, addresses: ServiceAddresses) -> Iterator[Finding]:
    """Check that this machine reaches the live RLMs where they announce themselves."""
    with call.connect(addresses) as tier:
        pages = [rlm.describe_partitions(page_size=1) for rlm in tier.logs.values()]
    announced = {
        (each.broker_id, setting, address)
        for page in pages
        for each in page.rlms
        for setting, address in (
            ("RLM_ADVERTISED_ADDRESS", each.address),
            ("RLM_CONSUMER_ADVERTISED_ADDRESS", each.listener),
        )
        if address is not None
    }
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        problems = pool.map(lambda each: unreachable(each[2]), sorted(announced))
        found = [*zip(sorted(announced), problems, strict=True)]
    for (broker_id, setting, address), problem in found:
        if problem:
            text = f"the RLM of broker {broker_id} announces {address}: {problem}"
            yield Finding("readers", Level.WARN, text, f"set its {setting} to what readers reach")
    if found and not any(problem for _, problem in found):
        text = f"{counted(len(found), 'announced address', 'announced addresses')}: reached"
        yield Finding("readers", Level.OK, text)


def _check_local_retention(call: Call) -> Iterator[Finding]:
    """Check the brokers' settings of the topics that RLM trims, and its user's rights to them."""
    with call.rlmm_client() as rlmm, call.rlm_client() as rlm:
        for topic in sum_topics(all_partitions(rlmm)).values():
            stored = rlmm.topic_config(topic.topic_id)
            if stored.config.is_trimmed_by_rlm:
                yield _judge_local_retention(rlm, topic, stored)


def _judge_local_retention(
    rlm: OffsetService, topic: TopicFigures, stored: StoredTopicConfig
) -> Finding:
    """Let RLM check all that its owner's change needs, and change nothing."""
    name, settings = "local retention", dict(stored.entries)
    change = LocalRetentionChange(
        topic.topic_id, topic.name, LocalRetentionOwner.RLM, settings=settings
    )
    try:
        kept = rlm.set_local_retention_owner(change).as_entries()
    except DeletionRefusedError as e:
        next_step = "docs/use/sidecar.md#tls-and-sasl lists all rights that RLM's user needs"
        return Finding(name, Level.FAIL, str(e), next_step)
    if kept.items() <= settings.items():
        text = f"topic {topic.name}: its brokers delete nothing, and RLM may change and trim it"
        return Finding(name, Level.OK, text)
    text = f"topic {topic.name}: its brokers delete by themselves what may not be in the tier"
    again = f"sediment topics set {topic.name} {LOCAL_RETENTION_OWNER}=rlm"
    return Finding(name, Level.WARN, text, again)


def _check_keys(call: Call) -> Iterator[Finding]:
    """Unwrap data keys of a few segments, the first of each partition, by the ring of RSM."""
    with call.tier_clients() as (_, objects, rlmm):
        try:
            first = [
                _first_finished(rlmm, each.topic_id_partition)
                for each in islice(all_partitions(rlmm), _SAMPLE)
            ]
            sample = [each for each in first if each is not None]
            ring = objects.rewrap_keys(sample, dry_run=True)
        except (PermissionDeniedError, NotServedError) as e:
            yield Finding("keys", Level.SKIP, str(e))
            return
    next_step = "see docs/run/security.md#keys-of-a-ring; `sediment keys` looks at all segments"
    if ring.problem:
        yield Finding("keys", Level.FAIL, ring.problem, next_step)
    found = [each for each in ring.outcomes if isinstance(each, SegmentKey)]
    for key_id, problem in {each.key_id: each.problem for each in found if each.problem}.items():
        yield Finding("keys", Level.FAIL, f"key {key_id}: {problem}", next_step)
    if ring.problem or any(each.problem for each in found):
        return
    needed = ", ".join(sorted({each.key_id for each in found if each.key_id}))
    if ring.current:
        text = f"{ring.current} is current; {counted(len(found), 'segment')} read need "
        yield Finding("keys", Level.OK, f"{text}{needed or 'none'}")
    elif needed:
        text = f"RSM has no ring: nothing checks manifests, whose seals are of the keys {needed}"
        yield Finding("keys", Level.WARN, text, next_step)


def _first_finished(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> RemoteLogSegmentMetadata | None:
    segments = all_segments(rlmm, tp, states=[RemoteLogSegmentState.COPY_SEGMENT_FINISHED])
    try:
        return next((s for s in segments if s.custom_metadata is not None), None)
    except RemoteResourceNotFoundError:  # It was removed meanwhile.
        return None


def unreachable(address: str) -> str:
    """Return why this machine cannot connect to HOST:PORT; "" if it can."""
    try:
        socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S).close()
    except OSError as e:
        return str(e)
    return ""


def broker_findings(address: str, lag: CopyLag, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Judge an RLM's copies, and the problems of its log directories."""
    next_step = f"sediment partitions --rlm {address}"
    line = lag_line(lag, now_ms())
    text, is_sound = f"{address}: {line.text}", line.severity is Severity.OK
    yield Finding("brokers", Level(line.severity), text, "" if is_sound else next_step)
    for problem in problems[:_SHOWN]:
        text = ": ".join(filter(None, (problem.path, problem.message)))
        yield Finding("brokers", Level.WARN, text, next_step)
