"""sasl.jaas.config, read as Kafka reads it."""

import pytest

from services.rlm.kafka_admin.client_config import JaasEntry, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f'{PLAIN} required username="rlm" password="{SECRET}";',
        f"{PLAIN} REQUIRED\n  username='rlm'\n  password={SECRET} ;\n",
        f'{PLAIN} required username = rlm password="{SECRET}"; // his own',
        f'/* of\nRLM */ {PLAIN} optional password="old" username="rlm" password="{SECRET}";',
    ],
)
def test_one_login_module_is_read_with_its_options(text: str) -> None:
    assert parse_jaas(text) == JaasEntry(PLAIN, {"username": "rlm", "password": SECRET})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', r"a\b"),
        (r'"\t\n\a\q"', "\t\n\aq"),
        (r'"\101\7\501"', "A\x07(1"),
        ('"it\'s ; = // /* */"', "it's ; = // /* */"),
        ("'say \"x\"'", 'say "x"'),
        ('"ä\u20ac"', "ä\u20ac"),
        ("a-b_c.d$1", "a-b_c.d$1"),
        ('""', ""),
    ],
)
def test_quotes_and_escapes_are_those_of_java(written: str, meant: str) -> None:
    assert parse_jaas(f"{PLAIN} required password={written};").options == {"password": meant}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "at its end: a login module's class is expected"),
        (f'"{SECRET}" required;', "at character 1: a login module's class is expected"),
        (f"M {SECRET} username=a;", "at character 3: `required` is expected"),
        ("M", "at its end: `required` is expected"),
        (f"M required password={SECRET}", "at its end: an option's name, or a `;` at the end"),
        (f"M required '{SECRET}'=a;", "at character 12: an option's name"),
        (f"M required password=a {SECRET};", "at character 30: a `=` is expected; a value with"),
        ("M required password=;", "at character 21: a value is expected"),
        ("M required password=", "at its end: a value is expected"),
        (f"M required password=7{SECRET};", "at character 21: neither a word nor quoted"),
        (f'M required password="{SECRET};', "at character 21: neither a word nor quoted"),
        (f'M required password="{SECRET}\n";', "at character 21: neither a word nor quoted"),
        (f"M required password=a!{SECRET};", "at character 22: neither a word nor quoted"),
        (f"M required a=b; {SECRET} required;", "at character 17: more than one login module"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_of_it_repeated(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="at ") as refused:
        parse_jaas(text)
    assert str(refused.value).startswith(wrong)
    assert SECRET not in str(refused.value)


def test_a_password_is_in_no_representation() -> None:
    entry = parse_jaas(f'M required password="{SECRET}";')
    assert SECRET not in repr(entry)
