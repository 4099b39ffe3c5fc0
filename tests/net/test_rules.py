"""Rules of an operator: the first that fits decides, and what cannot be is one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from twisted_msgproto import Access
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.net.authorising import Rules, read_rules

CLIENT: dict[str, Any] = {
    "user": "ada",
    "address": "10.1.2.3",
    "protocol": "micromsg2",
    "action": "publish",
    "name": "orders",
}


def allowed(text: str, **access: Any) -> bool:
    tables = tomllib.loads(text)
    return Rules.of(tables["access"]).allows(Access(**{**CLIENT, **access}))


def rule(**keys: Any) -> Rules:
    return Rules.of([{key.replace("_", "-"): value for key, value in keys.items()}])


def test_the_first_rule_that_fits_decides() -> None:
    text = """
    [[access]]
    deny = "publish"
    name = "orders"
    user = "bob"
    [[access]]
    allow = ["publish", "consume"]
    name = "orders"
    [[access]]
    deny = "*"
    name = "ord*"
    [[access]]
    allow = "*"
    user = "ada"
    """
    assert allowed(text)
    assert not allowed(text, user="bob")
    assert allowed(text, user="bob", action="consume")
    assert not allowed(text, name="ordinary")
    assert allowed(text, name="others")
    assert not allowed(text, name="others", user="eve")


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "", True),
        ("*", "topic/a/b", True),
        ("topic/*", "topic/a/b", True),
        ("topic/*", "atopic/a", False),
        ("topic/?", "topic/ab", False),
        ("[ab]c", "bc", True),
        ("a[*]b", "a*b", True),
        ("a[*]b", "axb", False),
        ("Orders", "orders", False),
        ("orders", "orders\n", False),
        ("*orders", "new\norders", True),
        ("", "", True),
        ("", "x", False),
        ("a[{]user}", "a{user}", True),
    ],
)
def test_names_are_compared_with_globs(pattern: str, name: str, fits: bool) -> None:
    assert rule(allow="*", name=pattern).allows(Access(**{**CLIENT, "name": name})) is fits


def test_who_consumes_dead_letters_is_asked_about_as_a_consumer_of_their_queue() -> None:
    """RD-56; a rule above may say something else of them, and topics have no dead letters."""
    text = """
    [[access]]
    allow = "consume"
    name = "*.dead"
    user = "bob"
    [[access]]
    deny = "*"
    name = "secret"
    [[access]]
    allow = "consume"
    name = "orders"
    [[access]]
    allow = "*"
    user = "eve"
    """
    for user, name, may in (
        ("bob", "secret.dead", True),
        ("bob", "secret", False),
        ("eve", "secret.dead", False),
        ("eve", "others.dead", True),
        ("ada", "orders.dead", True),
        ("ada", "others.dead", False),
    ):
        assert allowed(text, action="consume", user=user, name=name) == may
    assert allowed(text, action="subscribe", user="eve", name="secret.dead", protocol="umq")


def test_one_of_several_values_is_enough_and_all_conditions_hold() -> None:
    rules = rule(allow="*", name=["a", "b*"], user=["ada", "bob"])
    for user, name, fits in (
        ("ada", "a", True), ("bob", "bx", True), ("ada", "c", False), ("eve", "a", False),
    ):  # fmt: skip
        assert rules.allows(Access(**{**CLIENT, "user": user, "name": name})) is fits


@pytest.mark.parametrize(
    ("pattern", "user", "fits"),
    [
        ("*", "ada", True),
        ("*", None, False),
        ("*", "", False),
        ("", None, True),
        ("", "ada", False),
    ],
)
def test_a_client_without_a_name_is_an_empty_user(
    pattern: str, user: str | None, fits: bool
) -> None:
    assert rule(allow="*", user=pattern).allows(Access(**{**CLIENT, "user": user})) is fits


@pytest.mark.parametrize(
    ("network", "address", "fits"),
    [
        ("10.0.0.0/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8", "::ffff:10.1.1.1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::/32", "10.0.0.1", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("unix", "", True),
        ("unix", "127.0.0.1", False),
        ("0.0.0.0/0", "", False),
    ],
)
def test_addresses_are_compared_with_networks(network: str, address: str, fits: bool) -> None:
    assert rule(allow="*", address=network).allows(Access(**{**CLIENT, "address": address})) is fits


def test_a_protocol_and_a_virtual_host_are_conditions() -> None:
    mtl = {**CLIENT, "protocol": "mtl", "virtual_host": "blue"}
    rules = rule(allow="*", protocol="mtl", virtual_host="b*")
    assert rules.allows(Access(**mtl))
    assert not rules.allows(Access(**{**mtl, "virtual_host": "red"}))
    assert not rules.allows(Access(**CLIENT))


@pytest.mark.parametrize(
    ("user", "name", "fits"),
    [
        ("ada", "box/ada/in", True),
        ("ada", "box/bob/in", False),
        ("*", "box/bob/in", False),
        ("*", "box/*/in", True),
        ("a[b", "box/a[b/in", True),
        (None, "box//in", False),
        (None, "box/{user}/in", False),
    ],
)
def test_user_in_braces_is_the_clients_own_name_and_no_glob(
    user: str | None, name: str, fits: bool
) -> None:
    access = Access(**{**CLIENT, "user": user, "name": name})
    assert rule(allow="*", name="box/{user}/*").allows(access) is fits


def test_rules_of_one_client_are_not_another_ones() -> None:
    rules = Rules.of([{"allow": "*", "user": "ada"}, {"allow": "*", "name": "b", "user": "bob"}])
    for _ in range(2):
        assert rules.allows(Access(**CLIENT))
        assert not rules.allows(Access(**{**CLIENT, "user": "bob"}))
        assert rules.allows(Access(**{**CLIENT, "user": "bob", "name": "b"}))


GOOD = {"allow": "publish"}


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ({}, r"access is a list of rules: write \[\[access\]\] above each"),
        ([1], r"write \[\[access\]\] above each"),
        ([], "access has no rule, so everything would be refused: leave it out"),
        ([{"deny": "call", "name": "x"}] * 1001, "has 1001 rules; at most 1000"),
        ([{}], r"\[\[access\]\] rule 1: it has neither allow nor deny; .* allow = \"publish\""),
        ([{**GOOD, "deny": "call"}], "both allow and deny: make two rules of it"),
        ([{**GOOD, "users": "x"}], r"unknown key 'users' \(did you mean 'user'\?\); known: allow"),
        ([{"allow": "publsh"}], r"allow: there is no action 'publsh' \(did you mean 'publish'\?\)"),
        ([{"allow": "read"}], "known: publish, subscribe, consume, call, [*]"),
        ([{"allow": []}], "allow is an empty list"),
        ([{**GOOD, "user": 7}], "user: 7 is no text; write it in quotes"),
        ([{**GOOD, "name": []}], "name is an empty list: leave it out"),
        ([{**GOOD, "address": "10.0.0.300"}], "'10.0.0.300' is no IP address and no network such"),
        ([{**GOOD, "address": "10.0.0.5/8"}], "an address within a network; write 10.0.0.0/8"),
        ([{**GOOD, "name": "a/{usr}"}], r"name: 'a/\{usr\}': only \{user\} in name may stand"),
        ([{**GOOD, "user": "{user}"}], r"user: '\{user\}': no braces; write \[\{\]"),
        (
            [{"deny": "*"}, {"allow": "*", "user": "ada"}],
            "rule 2: it is never reached, since rule 1 fits everything: write it above that one",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(tables: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as raised:
        Rules.of(tables)
    assert "\n" not in str(raised.value)


def test_a_protocol_that_nobody_knows_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"rule 1: protocol: there is no 'umk' \(did you"):
        rule(allow="*", protocol="umk").check_protocols(["umq", "mtl"])


def test_what_rules_say_of_themselves_makes_the_same_rules() -> None:
    tables = [
        {"deny": ["*"], "user": ["a*", ""], "address": ["10.0.0.0/8", "unix", "::1/128"]},
        {"allow": ["publish", "call"], "name": ["x/{user}"], "virtual-host": ["v"]},
        {"allow": ["subscribe"], "protocol": ["umq"]},
    ]
    assert list(Rules.of(tables).tables()) == tables
    assert len(Rules.of([{"deny": "call", "name": "x"}] * 1000).rules) == 1000


def test_a_file_of_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    with pytest.raises(ConfigurationError, match="No such file"):
        read_rules(path)
    for text, complaint in (
        ("x", "not TOML"), ("[umq]", "unknown key 'umq'"), ("", "access has no rule"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=complaint):
            read_rules(path)
    path.write_text('[[access]]\nallow = "publish"\n')
    assert read_rules(path).allows(Access(**CLIENT))
