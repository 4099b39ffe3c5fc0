"""[[access]] in a gateway.toml: checked, shown, and kept by a process with two users."""

from __future__ import annotations

import contextlib
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.task import Clock
from twisted.python import usage
from twisted.trial.unittest import TestCase

from tests.tools.processes import PATIENCE_SECONDS, Launcher, launching, msgproto
from tests.tools.queues import rows
from twisted_msgproto import Access
from twisted_msgproto.core.errors import ConfigurationError, Refused
from twisted_msgproto.gateway import Configuration, make_gateway
from twisted_msgproto.micromsg2 import MicroMsg2Client, MicroMsg2ClientFactory, Offer, Proposal
from twisted_msgproto.registry import PROTOCOLS, load
from twisted_msgproto.umq import call_method, connect

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


def test_what_is_shown_can_be_read_back() -> None:
    first = configuration(RULES + "[umq]\n[micromsg2]\n")
    shown = "\n".join(first.lines())
    assert "[[access]]" in shown
    again = configuration(shown)
    assert "\n".join(again.lines()) == shown
    assert again.access is not None and first.access is not None
    assert again.access.rules == first.access.rules


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
    file.write_text(f"{RULES}[umq]\nauth = 'file:{tmp_path}/users'\n[sabc]\n[micromsg2]\n")
    told = [
        line
        for line in msgproto("check", "--file-only", file).splitlines()
        if line.startswith("access: ")
    ]
    assert told[0] == "access: 4 rules; the first that fits decides, what none fits is refused"
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


# ── a process ───────────────────────────────────────────────────────────────────────────────────

FILE = (
    RULES
    + """
[queue]
directory = "spool"

[micromsg2]
endpoint = "tcp:0:interface=127.0.0.1"

[umq]
endpoint = "tcp:0:interface=127.0.0.1"
auth = "file:users"
"""
)


class Hearing(MicroMsg2Client):
    def connectionMade(self) -> None:
        self.bodies: list[bytes] = []
        self.came: Deferred[None] = Deferred()
        super().connectionMade()

    def messageReceived(self, message: Any) -> None:
        self.bodies.append(message.body)
        if not self.came.called:
            self.came.callback(None)


class TwoUsers(TestCase):
    """A gateway process on loopback, with users ``ada`` and ``bob``."""

    timeout = 2 * PATIENCE_SECONDS

    def setUp(self) -> None:
        directory = Path(self.mktemp()).absolute()
        directory.mkdir(parents=True)
        (directory / "gateway.toml").write_text(FILE)
        (directory / "users").write_text("ada:one\nbob:two\n")
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.launch: Launcher = stack.enter_context(launching(directory))
        self.gateway = self.launch("gateway", "--config", "gateway.toml")

    async def micromsg2(self, name: str) -> Hearing:
        offers = (Offer("batch-ack", {"max-count": "1"}), Offer("pub-sub"))
        factory = MicroMsg2ClientFactory(proposal=Proposal(identity=name, optional=offers))
        factory.protocol = Hearing  # type: ignore[assignment]
        endpoint = clientFromString(reactor, self.gateway.address("micromsg2"))
        client: Any = await endpoint.connect(factory)
        self.addCleanup(client.close)
        await client.whenEstablished()
        return client  # type: ignore[no-any-return]

    async def umq(self, name: str, password: str) -> Any:
        where = self.gateway.address("umq").removeprefix("tcp:")
        client = await connect(f"ws://{where}/", hello=f"{name}:{password}")
        self.addCleanup(client.close)
        return client

    async def refused(self, asked: Any, code: object) -> None:
        with self.assertRaises(Refused) as raised:
            await asked
        self.assertEqual(raised.exception.code, code)

    def test_each_may_do_what_the_rules_say_and_nothing_else_is_stored(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.each_may())

    async def each_may(self) -> None:
        ada, bob = await self.micromsg2("ada"), await self.micromsg2("bob")
        secret = await bob.subscribe("topic/secret")
        self.assertEqual(await secret.whenEnded(), "refused")
        await bob.subscribe("topic/prices")
        await self.refused(bob.send("orders", b"bob's"), "refused")
        await self.refused(ada.send("topic/secret", b"secret"), "refused")
        await ada.send("orders", b"1")
        await ada.send("topic/prices", b"2")
        await bob.came
        self.assertEqual(bob.bodies, [b"2"])

        one, two = await self.umq("ada", "one"), await self.umq("bob", "two")
        await self.refused(call_method(two, "measure", 3), 1)
        await self.refused(call_method(two, "publish", "orders", "bob's"), 1)
        await self.refused(call_method(one, "other", 3), 1)
        self.assertTrue((await call_method(one, "measure", 3)).durable)
        self.assertEqual(await call_method(one, "publish", "orders", "x"), 0)

        for client in (ada, bob, one, two):
            await client.close()
        self.assertEqual(self.gateway.end(), -signal.SIGTERM)
        stored = [(row["protocol"], row["client_id"], row["destination"]) for row in self.rows()]
        self.assertEqual(
            stored,
            [
                ("micromsg2", "ada", "orders"),
                ("micromsg2", "ada", "topic/prices"),
                ("umq", "ada", "measure"),
                ("umq", "ada", "publish"),
            ],
        )
        self.assertEqual(self.gateway.output.count("'bob' may not publish to 'orders'"), 2)
        self.assertEqual(self.gateway.output.count("'bob' may not call 'measure'"), 1)
        self.assertNotIn("Traceback", self.gateway.output)

    def rows(self) -> list[dict[str, Any]]:
        return rows(self.launch.directory / "spool")
