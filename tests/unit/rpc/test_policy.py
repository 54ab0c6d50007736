"""Test what a policy file grants, and that nothing in it is ignored."""

from contextlib import suppress

import pytest

from hatch_build import ROOT
from services.api.roles import Role
from services.rpc.server.policy import ALL_TOPICS, Policy, parse_policy

BROKERS = """
[[grant]]
identities = ["spiffe://example.org/ns/kafka/sa/broker-*", "*.brokers.example.org"]
roles = ["shipper", "reader"]
topics = ["orders-*", "payments"]
"""
SWEEPS = """
[[grant]]
identities = ["system:serviceaccount:jobs:sweep-*"]
roles = ["sweeper"]
topics = ["*"]
"""
READER, SWEEPER = frozenset([Role.READER]), frozenset([Role.SWEEPER])
BROKER = "spiffe://example.org/ns/kafka/sa/broker-1"


def policy(text: str) -> Policy:
    return parse_policy(text.encode())


@pytest.mark.parametrize(
    ("identity", "is_granted"),
    [
        (BROKER, True),
        ("spiffe://example.org/ns/kafka/sa/broker-", True),
        ("b-1.brokers.example.org", True),
        # A star stays within a part of the name.
        ("spiffe://example.org/ns/kafka/sa/broker-1/other", False),
        ("spiffe://example.org/ns/kafka/sa/broker-x:y", False),
        ("spiffe://evil/brokers.example.org", False),
        # A pattern covers the whole name.
        ("spiffe://example.org/ns/kafka/sa/broker", False),
        ("xspiffe://example.org/ns/kafka/sa/broker-1", False),
        ("b-1.brokers.example.org.evil", False),
        ("spiffe://exampleXorg/ns/kafka/sa/broker-1", False),
        ("", False),
        ("anonymous", False),
    ],
)
def test_an_identity_is_matched_as_a_whole(identity: str, is_granted: bool) -> None:
    assert policy(BROKERS).allows(identity, READER) is is_granted
    assert bool(policy(BROKERS).grants_of(identity)) is is_granted


@pytest.mark.parametrize(
    ("topic", "is_granted"),
    [
        ("orders-1", True),
        ("orders-", True),
        ("payments", True),
        ("payments-1", False),
        ("orders", False),
        ("my-orders-1", False),
        ("", False),
        (ALL_TOPICS, False),
        (None, True),
    ],
)
def test_a_topic_is_matched_as_a_whole(topic: str | None, is_granted: bool) -> None:
    assert policy(BROKERS).allows(BROKER, READER, topic) is is_granted


def test_a_grant_of_a_star_covers_all_topics() -> None:
    sweep = "system:serviceaccount:jobs:sweep-1"
    for topic in ("any", ALL_TOPICS, None):
        assert policy(SWEEPS).allows(sweep, SWEEPER, topic)
    assert not policy(SWEEPS).allows("system:serviceaccount:jobs:x:sweep-1", SWEEPER)


def test_grants_add_up_each_with_its_own_topics() -> None:
    more = f'[[grant]]\nidentities = ["{BROKER}"]\nroles = ["deleter"]\ntopics = ["audit"]'
    both = policy(BROKERS + more)
    assert both.allows(BROKER, frozenset([Role.DELETER]), "audit")
    assert not both.allows(BROKER, frozenset([Role.DELETER]), "orders-1")
    assert not both.allows(BROKER, READER, "audit")


def test_roles_are_granted_one_by_one() -> None:
    for role in Role:
        allowed = policy(BROKERS).allows(BROKER, frozenset([role]))
        assert allowed is (role in (Role.SHIPPER, Role.READER))


def test_many_stars_cost_no_time() -> None:
    stars = f'[[grant]]\nidentities = ["a"]\nroles = ["reader"]\ntopics = ["{"a*" * 100}b"]'
    assert not policy(stars).allows("a", READER, "a" * 249)


GRANT = '[[grant]]\nidentities = ["a"]\nroles = ["reader"]\n'
TOPICS = GRANT + 'topics = ["*"]\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 grants"),
        ("# nothing\n", "has 0 grants"),
        ("grant = []", "has 0 grants"),
        ("[grant]\nroles = []", "write each grant as an entry"),
        ("grant = [1]", "write each grant as an entry"),
        (GRANT + "[[grants]]", "unknown key 'grants'"),
        (GRANT + "[other]", "unknown key 'other'"),
        (GRANT + "rpcs = ['Fetch']", "grant 1: unknown key 'rpcs'"),
        (GRANT + "topic = ['a']", "grant 1: unknown key 'topic'"),
        (TOPICS + GRANT.replace("reader", "raeder"), "grant 2: unknown role 'raeder'"),
        (GRANT.replace("reader", "READER"), "grant 1: unknown role 'READER'"),
        (GRANT.replace('["reader"]', '"reader"'), "grant 1: roles must be a list"),
        (GRANT.replace('["reader"]', "[]"), "grant 1: roles must be a list"),
        (GRANT.replace('["reader"]', "[1]"), "grant 1: roles must be a list"),
        ('[[grant]]\nroles = ["reader"]', "grant 1: identities must be a list"),
        ('[[grant]]\nidentities = ["a"]', "grant 1: roles must be a list"),
        (GRANT.replace('"a"', '""'), "grant 1: identities has a text of 0 characters"),
        (GRANT.replace('"a"', f'"{"a" * 2049}"'), "grant 1: identities has a text of 2,049"),
        (GRANT.replace('"a"', '"*"'), "would match everyone"),
        (GRANT.replace('"a"', '"**"'), "would match everyone"),
        (GRANT.replace('"a"', '"a b"'), "has a space"),
        (GRANT.replace('"a"', '"a\\u0000"'), "has a space"),
        (GRANT.replace('"a"', '"brök"'), "is not ASCII"),
        (GRANT, r"grant 1: has no topics; .* write topics = \[\"\*\"\] for all topics"),
        (GRANT + "topics = []", "grant 1: topics must be a list"),
        (GRANT + 'topics = ["or ders"]', "'or ders' is no pattern"),
        (GRANT + "roles = ['reader']", "not TOML: Cannot overwrite"),
        (GRANT + "x = y", r"not TOML: Invalid value \(at line 4, column 5\)"),
        ("a = " + "[" * 50_000, "nested too deeply"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_at_its_place(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        policy(text)


def test_a_file_that_was_cut_off_grants_nothing_that_it_did_not() -> None:
    whole = BROKERS + SWEEPS
    identities = (BROKER, "system:serviceaccount:jobs:sweep-1")
    topics = ("orders-1", "audit", ALL_TOPICS)
    cuts: list[Policy] = []
    for end in range(len(whole)):
        with suppress(ValueError):
            cuts.append(policy(whole[:end]))
    assert cuts
    calls = [(i, frozenset([r]), t) for i in identities for r in Role for t in topics]
    wider = {call for cut in cuts for call in calls if cut.allows(*call)}
    assert wider <= {call for call in calls if policy(whole).allows(*call)}


def test_a_policy_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not UTF-8 at byte 1"):
        parse_policy(b"#\xff")


def test_policy_in_the_documentation_grants_the_stated_roles() -> None:
    page = (ROOT / "docs" / "run" / "security.md").read_text()
    shown = policy(page.split("```toml")[1].split("```")[0])
    assert shown.allows(BROKER, frozenset([Role.DELETER]), ALL_TOPICS)
    archive = "spiffe://example.org/ns/shop/sa/orders-archive"
    assert shown.allows(archive, READER, "orders-1")
    assert not shown.allows(archive, READER, "payments")


CONSUMERS = """
[[grant]]
identities = ["spiffe://example.org/reports"]
roles = ["reader"]
topics = ["*"]
groups = ["reports-*", "other"]
"""


@pytest.mark.parametrize(
    ("group", "is_granted"),
    [("reports-", True), ("reports-1\n", True), ("other", True), ("reports", False), ("", False)],
)
def test_a_reader_uses_the_groups_of_its_grant(group: str, is_granted: bool) -> None:
    assert policy(CONSUMERS).allows_group("spiffe://example.org/reports", group) is is_granted
    assert not policy(CONSUMERS).allows_group("spiffe://example.org/others", group)
    assert not policy(BROKERS).allows_group(BROKER, group)


def test_groups_without_a_reader_are_refused() -> None:
    with pytest.raises(ValueError, match="grant 1: has groups without the role reader"):
        policy(SWEEPS + 'groups = ["*"]')
    with pytest.raises(ValueError, match="grant 1: groups must be a list"):
        policy(CONSUMERS.replace('["reports-*", "other"]', "[]"))
