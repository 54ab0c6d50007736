"""Read what an S3 store does with the objects of a prefix by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from xml.etree.ElementTree import Element

from services.api.errors import RemoteStorageError, StoreAccessDeniedError
from services.rsm.backends.s3_http import SignedRequests
from services.rsm.backends.s3_policy import ARCHIVES
from services.rsm.backends.s3_responses import code_of, parsed, require_success
from services.rsm.probe import RuleLevel, StoreRule


@dataclass(frozen=True, slots=True)
class _Lifecycle:
    """An enabled rule of the bucket's lifecycle that may cover objects of RSM.

    Attributes:
        is_for_all: it covers every object below RSM's prefix.
        expires, expires_old, aborts: when objects, old versions and unfinished uploads are deleted;
            "" for never.
        archives: when objects are moved to where they cannot be read; "" for never.
    """

    name: str
    is_for_all: bool
    expires: str
    expires_old: str
    aborts: str
    archives: str


def rules_of(requests: SignedRequests, prefix: str, where: str = "") -> list[StoreRule]:
    """Return what the store does by itself below a prefix; never raises a store's error.

    Args:
        where: begins each text; empty for none.
    """
    rules = [*_rules(requests, prefix)]
    return [rule._replace(text=f"{where}: {rule.text}" if where else rule.text) for rule in rules]


def _rules(requests: SignedRequests, prefix: str) -> Iterator[StoreRule]:
    below = f"objects below {prefix!r}" if prefix else "all objects of the bucket"
    lifecycle: list[_Lifecycle] | None = None
    try:
        found = _configuration(
            requests, "lifecycle", "LifecycleConfiguration", "NoSuchLifecycleConfiguration"
        )
        lifecycle = [*_covering(found, prefix)]
        yield from _of_lifecycle(lifecycle, below)
    except RemoteStorageError as e:
        yield _unknown("whether a rule deletes objects", "s3:GetLifecycleConfiguration", e)
    try:
        versioning = _configuration(requests, "versioning", "VersioningConfiguration")
        yield _of_versioning(versioning, lifecycle, below)
    except RemoteStorageError as e:
        yield _unknown("whether it keeps old versions", "s3:GetBucketVersioning", e)
    try:
        lock = _configuration(
            requests,
            "object-lock",
            "ObjectLockConfiguration",
            "ObjectLockConfigurationNotFoundError",
        )
        yield from _of_lock(lock)
    except RemoteStorageError as e:
        yield _unknown("whether it locks objects", "s3:GetBucketObjectLockConfiguration", e)


def _configuration(
    requests: SignedRequests, name: str, root: str, code_of_none: str = ""
) -> Element | None:
    """Return the bucket's configuration of a name, a `root`; send one request.

    None if the store answers with `code_of_none`.
    """
    what = f"GET {name} of the bucket"
    response = requests.request("GET", "", {name: ""}, retries=requests.no_retries)
    if response.status == HTTPStatus.NOT_FOUND and code_of(response, what) == code_of_none:
        return None
    require_success(response, what)
    return parsed(response, root, what)


def _unknown(what: str, permission: str, error: RemoteStorageError) -> StoreRule:
    why = f"allow {permission}" if isinstance(error, StoreAccessDeniedError) else str(error)
    return StoreRule(RuleLevel.UNKNOWN, f"the store does not say {what}: {why}")


def _covering(configuration: Element | None, prefix: str) -> Iterator[_Lifecycle]:
    """Yield the rules that may cover objects of RSM, which have no tags."""
    for rule in () if configuration is None else configuration.iterfind("{*}Rule"):
        limits = [rule, *rule.iterfind("{*}Filter"), *rule.iterfind("{*}Filter/{*}And")]
        theirs = next((text for each in limits if (text := each.findtext("{*}Prefix"))), "")
        if rule.findtext("{*}Status") != "Enabled" or any(
            each.find("{*}Tag") is not None for each in limits
        ):
            continue
        if not prefix.startswith(theirs) and not theirs.startswith(prefix):
            continue
        has_sizes = any(e.tag.rpartition("}")[2].startswith("ObjectSize") for e in rule.iter())
        yield _Lifecycle(
            rule.findtext("{*}ID") or "without an ID",
            prefix.startswith(theirs) and not has_sizes,
            _when(rule.find("{*}Expiration"), "Days"),
            _when(rule.find("{*}NoncurrentVersionExpiration"), "NoncurrentDays"),
            _when(rule.find("{*}AbortIncompleteMultipartUpload"), "DaysAfterInitiation"),
            _when(next(filter(_is_archive, rule.iterfind("{*}Transition")), None), "Days"),
        )


def _is_archive(transition: Element) -> bool:
    return transition.findtext("{*}StorageClass") in ARCHIVES


def _when(action: Element | None, days: str) -> str:
    """Return when an action of a rule is taken; "" if the rule has none that depends on a time."""
    if action is None:
        return ""
    number, date = action.findtext(f"{{*}}{days}"), action.findtext("{*}Date")
    if number is not None:
        return f"after {number} days"
    return f"from {date} on" if date else ""


def _of_lifecycle(rules: list[_Lifecycle], below: str) -> Iterator[StoreRule]:
    if not any(rule.expires for rule in rules):
        yield StoreRule(RuleLevel.OK, "no rule deletes objects")
    for rule in rules:
        of = below if rule.is_for_all else f"some {below.removeprefix('all ')}"
        if rule.expires:
            text = (
                f"the store deletes {of} {rule.expires} (rule {rule.name}): records that "
                "retention keeps will be lost; remove the rule"
            )
            yield StoreRule(RuleLevel.CRITICAL, text)
        if rule.archives:
            text = (
                f"the store archives {of} {rule.archives} (rule {rule.name}): they cannot be read "
                "then; remove the rule"
            )
            yield StoreRule(RuleLevel.WARNING, text)
        if rule.aborts:
            yield StoreRule(RuleLevel.OK, f"unfinished uploads end {rule.aborts}")


def _of_versioning(
    configuration: Element | None, lifecycle: list[_Lifecycle] | None, below: str
) -> StoreRule:
    status = None if configuration is None else configuration.findtext("{*}Status")
    old = next((each.expires_old for each in lifecycle or () if each.is_for_all), "")
    if status == "Suspended":
        text = "versioning is suspended: versions from before stay"
        return StoreRule(RuleLevel.OK, f"{text}, until a rule removes them" if old else text)
    if status != "Enabled":
        return StoreRule(RuleLevel.OK, "versioning is off")
    if old:
        return StoreRule(RuleLevel.OK, f"versioning is on, a rule removes old versions {old}")
    why = "no rule removes old versions"
    if lifecycle is None:
        why = "it is unknown whether a rule removes old versions"
    text = (
        f"deleted segments stay readable and paid for: versioning is on, {why}; add a rule with "
        f"NoncurrentVersionExpiration for {below}, or suspend versioning"
    )
    return StoreRule(RuleLevel.WARNING, text)


def _of_lock(configuration: Element | None) -> Iterator[StoreRule]:
    retention = None if configuration is None else configuration.find("{*}Rule/{*}DefaultRetention")
    if retention is None:
        return
    days, years = retention.findtext("{*}Days"), retention.findtext("{*}Years")
    time = f"{days} days" if days else f"{years} years"
    text = (
        f"Object Lock ({retention.findtext('{*}Mode')}) keeps each version for {time}: deleted "
        "segments stay readable and paid for until then"
    )
    yield StoreRule(RuleLevel.WARNING, text)
