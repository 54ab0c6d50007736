"""Test what RSM says a bucket does by itself, from the answers of a store."""

from urllib.parse import urlsplit

import pytest

from services.rsm.backends.s3_rules import rules_of
from services.rsm.probe import RuleLevel
from tests.unit.rsm.test_rsm_huge_answers import Write, answering, store_that

OFF = "<VersioningConfiguration/>"
ON = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
NO_RULES = "NoSuchLifecycleConfiguration"
NO_LOCK = "ObjectLockConfigurationNotFoundError"
LOCKED = (
    "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule>"
    "<DefaultRetention><Mode>COMPLIANCE</Mode><Days>9</Days></DefaultRetention></Rule>"
    "</ObjectLockConfiguration>"
)
NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
EXPIRES = "<Expiration><Days>30</Days></Expiration>"
OLD = (
    "<NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays></NoncurrentVersionExpiration>"
)
ABORTS = (
    "<AbortIncompleteMultipartUpload><DaysAfterInitiation>2</DaysAfterInitiation>"
    "</AbortIncompleteMultipartUpload>"
)


def rule(where: str, *actions: str, status: str = "Enabled") -> str:
    return (
        f"<LifecycleConfiguration {NAMESPACE}><Rule><ID>r1</ID><Status>{status}</Status>{where}"
        f"{''.join(actions)}</Rule></LifecycleConfiguration>"
    )


def below(prefix: str) -> str:
    return f"<Filter><Prefix>{prefix}</Prefix></Filter>"


def answers(lifecycle: str = NO_RULES, versioning: str = OFF, lock: str = NO_LOCK) -> Write:
    """Answer each request with XML, or with the code of an error."""
    of = {"lifecycle": lifecycle, "versioning": versioning, "object-lock": lock}

    def write(handler: object) -> None:
        query = urlsplit(getattr(handler, "path")).query.partition("=")[0]  # noqa: B009
        text = of[query]
        status = {"AccessDenied": 403, "NotImplemented": 501}.get(text, 404)
        body = text if text.startswith("<") else f"<Error><Code>{text}</Code></Error>"
        answering(body.encode(), 200 if text.startswith("<") else status)(handler)  # type: ignore[arg-type]

    return write


def found(write: Write, prefix: str = "tier/") -> dict[RuleLevel, str]:
    with store_that(write) as (store, _):
        rules = rules_of(store.requests, prefix)
    return {
        level: "; ".join(each.text for each in rules if each.level is level)
        for level in RuleLevel
        if any(each.level is level for each in rules)
    }


def test_a_plain_bucket_deletes_for_good_and_nothing_by_itself() -> None:
    assert found(answers()) == {RuleLevel.OK: "no rule deletes objects; versioning is off"}


@pytest.mark.parametrize(
    ("where", "prefix", "of"),
    [
        (below(""), "tier/", "objects below 'tier/'"),
        ("<Prefix>ti</Prefix>", "tier/", "objects below 'tier/'"),
        (below("tier/0"), "tier/", "some objects below 'tier/'"),
        (below("x"), "", "some objects of the bucket"),
        ("", "", "all objects of the bucket"),
        (
            "<Filter><And><Prefix>tier/</Prefix><ObjectSizeGreaterThan>9</ObjectSizeGreaterThan>"
            "</And></Filter>",
            "tier/",
            "some objects below 'tier/'",
        ),
    ],
)
def test_a_rule_that_deletes_objects_of_the_tier_is_critical(
    where: str, prefix: str, of: str
) -> None:
    said = found(answers(rule(where, EXPIRES)), prefix)
    assert said[RuleLevel.CRITICAL] == (
        f"the store deletes {of} after 30 days (rule r1): records that retention keeps will be "
        "lost; remove the rule"
    )
    assert said[RuleLevel.OK] == "versioning is off"


@pytest.mark.parametrize(
    "lifecycle",
    [
        rule(below("other/"), EXPIRES),
        rule(below(""), EXPIRES, status="Disabled"),
        rule("<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter>", EXPIRES),
        rule(
            below(""),
            "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>",
        ),
    ],
)
def test_a_rule_that_spares_the_tier_is_none(lifecycle: str) -> None:
    assert found(answers(lifecycle)) == {RuleLevel.OK: "no rule deletes objects; versioning is off"}


def test_old_versions_are_a_warning_unless_a_rule_for_all_objects_removes_them() -> None:
    kept = "deleted segments stay readable and paid for: versioning is on, no rule removes"
    assert found(answers(versioning=ON))[RuleLevel.WARNING].startswith(kept)
    partly = answers(rule(below("tier/0"), OLD), ON)
    assert found(partly)[RuleLevel.WARNING].startswith(kept)
    removed = found(answers(rule(below("tier/"), OLD), ON))
    assert removed == {
        RuleLevel.OK: "no rule deletes objects; versioning is on, a rule removes old versions "
        "after 3 days"
    }


def test_locks_archives_and_ended_uploads_are_named() -> None:
    archive = "<Transition><Days>7</Days><StorageClass>DEEP_ARCHIVE</StorageClass></Transition>"
    cool = "<Transition><Days>1</Days><StorageClass>STANDARD_IA</StorageClass></Transition>"
    said = found(answers(rule(below(""), cool, archive, ABORTS), lock=LOCKED))
    warned = said[RuleLevel.WARNING]
    assert "archives objects below 'tier/' after 7 days" in warned
    assert "Object Lock (COMPLIANCE) keeps each version for 9 days" in warned
    assert "unfinished uploads end after 2 days" in said[RuleLevel.OK]


def test_what_a_store_does_not_say_is_unknown() -> None:
    said = found(answers("AccessDenied", "NotImplemented", "<ListBucketResult/>"))
    assert [*said] == [RuleLevel.UNKNOWN]
    rules, versions, locks = said[RuleLevel.UNKNOWN].split("; ")
    assert rules.endswith("whether a rule deletes objects: allow s3:GetLifecycleConfiguration")
    assert "501 NotImplemented" in versions
    assert "not an answer of an S3 store" in locks
