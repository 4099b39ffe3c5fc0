"""[[access]] in a gateway.toml: checked, shown, and given to every server."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.python import usage

from tests.tools.processes import msgproto
from twisted_msgproto import Access
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.gateway import Configuration, make_gateway
from twisted_msgproto.registry import PROTOCOLS, load

RULES = """
[[access]]
deny = "*"
name = "topic/secret"

[[access]]
allow = "publish"
user = "ada"
name = ["orders", "topic/*", "attribute/{user}"]

[[access]]
allow = ["subscribe", "consume"]
user = "bob"
protocol = "micromsg2"

[[access]]
allow = "call"
user = ["ada", "nobody"]
name = "measure"
"""


def configuration(text: str) -> Configuration:
    return Configuration(tomllib.loads(text))


# ── the file ────────────────────────────────────────────────────────────────────────────────────


def test_every_server_of_the_file_has_the_rules() -> None:
    text = RULES + "\n".join(f"[{name}]" for name in PROTOCOLS)
    gateway = make_gateway(configuration(text), Clock())
    assert len(gateway.factories) == len(PROTOCOLS)
    access = Access("ada", "127.0.0.1", "umq", "publish", "orders")
    for factory in gateway.factories:
        assert factory.authoriser.allows(access)
        assert not factory.authoriser.allows(access._replace(user="eve"))


def test_without_rules_nobody_is_asked() -> None:
    gateway = make_gateway(configuration("\n".join(f"[{name}]" for name in PROTOCOLS)), Clock())
    assert [factory.authoriser for factory in gateway.factories] == [None] * len(PROTOCOLS)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[access]\nallow = 'publish'", "access is a list of rules: write [[access]] above each"),
        ("[[access]]\nallow = 'publsh'", "[[access]] rule 1: allow: there is no action 'publsh'"),
        ("[[access]]\nallow = '*'\nprotocol = 'umk'", "protocol: there is no 'umk' (did you mean"),
    ],
)
def test_check_names_file_and_rule_and_key_and_remedy(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f"{text}\n[umq]\n")
    told = msgproto("check", file, status=2)
    assert told.startswith(f"msgproto check: {file}: ")
    assert complaint in told and told.count("\n") == 1


def test_check_says_where_users_prove_nothing(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ada:secret\n")
    file = tmp_path / "gateway.toml"
    file.write_text(
        "[[access]]\nallow = '*'\nuser = 'ada'\nprotocol = ['sabc', 'micromsg2']\n"
        "[[access]]\nallow = '*'\n"
        f"[umq]\nauth = 'file:{tmp_path}/users'\n[sabc]\n[micromsg2]\n[lumberjack]\n"
    )
    told = [
        line
        for line in msgproto("check", "--file-only", file).splitlines()
        if line.startswith("access: ")
    ]
    assert told[0] == "access: 2 rules; the first that fits decides, what none fits is refused"
    assert told[1].startswith("access: sabc: without auth a user is the name that a client ann")
    assert told[2].startswith("access: micromsg2: a user is the name that a client announces")
    assert len(told) == 3


def test_set_cannot_change_rules(tmp_path: Path) -> None:
    from twisted_msgproto.gateway import Options

    file = tmp_path / "gateway.toml"
    file.write_text(RULES + "[umq]\n")
    with pytest.raises(SystemExit, match="--set cannot change \\[\\[access\\]\\]"):
        Options().parseOptions([f"--config={file}", "--set=access.allow=x"])


# ── single servers, and authorisers of one's own ────────────────────────────────────────────────

OWN = """
from zope.interface import implementer
from twisted_msgproto import IAuthoriser

@implementer(IAuthoriser)
class Mine:
    made = 0
    def __init__(self, gateway):
        Mine.made += 1
    def allows(self, access):
        return access.user == "ada"

class Other: ...

def nothing(gateway): return 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_access.py").write_text(OWN)
    (tmp_path / "rules.toml").write_text('[[access]]\nallow = "publish"\nuser = "ada"\n')
    (tmp_path / "bad.toml").write_text('[[access]]\nallow = "publsh"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_access", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_a_single_server_takes_a_file_of_rules(own: Path, name: str) -> None:
    service = load(name, "service")
    options = service.Options()
    options.read(["--access=rules.toml"])
    from twisted_msgproto.net.gateway import Gateway

    gateway = Gateway(Clock())
    service.serve(options, gateway)
    assert gateway.factories[0].authoriser is options.rules is not None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--access=missing.toml"], "--access missing.toml: No such file"),
        (["--access=bad.toml"], r"--access bad.toml: \[\[access\]\] rule 1: allow: there is no"),
        (["--access=rules.toml", "--authoriser=own_access:Mine"], "exclude each other"),
        (["--authoriser=own_access:Other"], "has to be an @implementer.IAuthoriser"),
        (["--authoriser=own_access:None_"], "authoriser 'own_access:None_': the module"),
    ],
)
def test_what_a_single_server_cannot_take_is_a_usage_error(
    own: Path, words: list[str], complaint: str
) -> None:
    with pytest.raises(usage.UsageError, match=complaint):
        load("umq", "service").Options().read(words)


def test_an_authoriser_of_ones_own_is_made_once_and_wins_over_the_rules(own: Path) -> None:
    text = "[umq]\nauthoriser='own_access:Mine'\n[mtl]\nauthoriser='own_access:Mine'\n[sabc]\n"
    told = configuration(RULES + text)
    umq, mtl, sabc = make_gateway(told, Clock()).factories
    assert umq.authoriser is mtl.authoriser is not sabc.authoriser
    assert umq.authoriser.made == 1
    assert sabc.authoriser is told.access
    with pytest.raises(ConfigurationError, match=r"\[umq\]: authoriser .* returned a int"):
        make_gateway(configuration("[umq]\nauthoriser='own_access:nothing'"), Clock())


def test_a_protocol_that_never_asks_is_not_run_beside_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = load("umq", "service").Options

    monkeypatch.setattr(options.serverFactory, "actions", frozenset())
    with pytest.raises(ConfigurationError, match=r"\[umq\]: umq does not ask who may what"):
        configuration(RULES + "[umq]\n")
