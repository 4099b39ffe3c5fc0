"""One door for every log-in: the same delay, throttled, a right password never locked out.

``msgproto passwd`` writes what every server with log-ins can check, and no password.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from twisted.cred.checkers import ICredentialsChecker, InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from tests.contract.cases import BOTH_WAYS, LOG_IN
from tests.contract.test_storing import Boom
from tests.contract.world import only, over_all
from tests.tools.processes import Launched, Launcher, msgproto
from twisted_msgproto.core.errors import ConnectionClosed
from twisted_msgproto.net import IIdentity
from twisted_msgproto.net.logs import line_of
from twisted_msgproto.testing import SafeSink

NAME, RIGHT = "me", "right"
ELSEWHERE = "198.51.100.9"


@implementer(ICredentialsChecker)
class Checker:
    """Knows one password; counts how often it is asked.

    Attributes:
        asked: the names it was asked about, in order.
        silent: it never answers.
    """

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self, silent: bool = False) -> None:
        self.asked: list[bytes] = []
        self.silent = silent

    def requestAvatarId(self, credentials: Any) -> Deferred[Any]:
        self.asked.append(credentials.username)
        if self.silent:
            return Deferred()
        if credentials.username == NAME.encode() and credentials.checkPassword(RIGHT.encode()):
            return succeed(credentials.username)
        return fail(UnauthorizedLogin())


class LogIn:
    def guarded(self: Any, **options: Any) -> Any:
        checker = Checker(silent=options.pop("silent", False))
        return self.world(SafeSink(), portal=self.case.portal([checker]), **options), checker

    @only(*LOG_IN)
    def test_who_knows_the_password_comes_in_at_once(self: Any) -> None:
        world, _ = self.guarded()
        self.successResultOf(world.log_in(NAME, RIGHT))

    @only(*LOG_IN)
    def test_every_failure_takes_the_same_time(self: Any) -> None:
        """NB-04: an unknown name cannot be told from a wrong password, and both cost a second."""
        for name, password in ((NAME, "wrong"), ("nobody", RIGHT)):
            world, _ = self.guarded()
            refused = world.log_in(name, password)
            world.wait(0.9, 0.1)
            self.assertNoResult(refused)
            world.wait(0.3, 0.1)
            self.failureResultOf(refused)

    @only(*LOG_IN)
    def test_wrong_passwords_from_elsewhere_do_not_shut_the_right_one_out(self: Any) -> None:
        """NB-05"""
        world, _ = self.guarded()
        for _ in range(25):
            self.ignore(world.log_in(NAME, "wrong", ELSEWHERE))
        world.wait(3)
        self.soon(world, world.log_in(NAME, RIGHT, "192.0.2.7"), 10)

    @only(*LOG_IN)
    def test_a_right_password_waits_for_its_check_and_its_client_is_patient(self: Any) -> None:
        """NB-05: its name is under attack from everywhere, and its own address is clean."""
        world, checker = self.guarded(login_rate=0.001)
        for number in range(24):
            self.ignore(world.log_in(NAME, "wrong", f"203.0.113.{number}"))
        self.assertEqual(len(checker.asked), 20)
        right = world.log_in(NAME, RIGHT)
        world.wait(7.8, 0.1)
        self.assertNoResult(right)
        world.wait(1, 0.1)
        self.successResultOf(right)
        again = world.log_in(NAME, RIGHT)  # it is known here now
        self.successResultOf(again)
        world.wait(10)

    @only(*LOG_IN)
    def test_a_login_that_waits_goes_with_its_client(self: Any) -> None:
        """NB-05: nothing of it is left on the clock, and no checker is asked."""
        world, checker = self.guarded(login_rate=0.001)
        for _ in range(8):
            self.ignore(world.log_in(NAME, "wrong", ELSEWHERE))
        self.assertEqual(len(checker.asked), 5)
        for peer in world.peers:
            peer.cut()
        world.pump()
        world.wait(0.5)
        self.assertEqual(world.factory.authentication.waiting, 0)
        world.wait(20)
        self.assertEqual(len(checker.asked), 5)

    @only(*LOG_IN)
    def test_each_refusal_is_a_line_that_does_not_show_the_secret(self: Any) -> None:
        """NB-04"""
        world, _ = self.guarded()
        for _ in range(40):
            self.ignore(world.log_in(NAME, "geheim", ELSEWHERE))
        world.wait(12)
        lines = [line for line in world.lines() if "login" in line]
        self.assertEqual(len(lines), 5)
        self.assertIn(f"{ELSEWHERE}: login as 'me' refused", lines[0])
        told = next(event for event in world.logged if "login" in event["log_format"])
        one = json.loads(line_of(told))
        self.assertEqual((one["event"], one["name"]), ("wrong", "'me'"))
        [worst] = world.factory.shared.offenders.worst(1)
        self.assertEqual((worst.address, worst.reason), (ELSEWHERE, "not checked"))
        world.wait(60, 10)
        self.successResultOf(world.log_in(NAME, RIGHT))
        self.assertIn(f"{ELSEWHERE}: … and 35 more logins refused", world.lines()[-1])
        self.assertNotIn("geheim", repr(world.logged))
        self.assertEqual(world.factory.counters["login_failures"], 40)

    @only(*LOG_IN)
    def test_a_checker_that_returns_no_name_lets_nobody_in(self: Any) -> None:
        for answer in (None, False, True, "", b""):
            world, checker = self.guarded()
            checker.requestAvatarId = lambda credentials, answer=answer: answer
            self.soonFails(world, world.log_in(NAME, RIGHT), seconds=5)
            self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)

    @only(*LOG_IN)
    def test_a_realm_whose_avatar_has_no_name_lets_nobody_in(self: Any) -> None:
        for name in (False, True, b"me"):
            world, _ = self.guarded()
            avatar = IIdentity, SimpleNamespace(name=name), lambda: None
            world.factory.authentication.portal.realm = SimpleNamespace(
                requestAvatar=lambda who, mind, *interfaces, avatar=avatar: avatar
            )
            self.soonFails(world, world.log_in(NAME, RIGHT), seconds=5)
            self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
            self.assertEqual(world.factory.counters["logins"], 0)

    @only(*LOG_IN)
    def test_a_check_that_never_answers_has_a_deadline_and_the_peer_is_told(self: Any) -> None:
        """HO-07"""
        world, _ = self.guarded(silent=True)
        self.soonFails(world, world.log_in(NAME, RIGHT), seconds=35)
        self.assertEqual(len(world.factory.liveConnections), 0)


over_all(globals(), LogIn)


# ── An ``authorise`` of one's own which ends things from inside, or answers when nob ──

WITH_LOG_IN = ("sabc", "sabc-ws", "umq")


class Authorising:
    def met(self: Any, authorise: Any) -> tuple[Any, Any]:
        world = self.world(SafeSink(), hooks={"authorise": authorise})
        peer = world.meet()
        self.ignore(peer.client.whenEstablished())
        world.pump()
        return world, peer

    @only(*WITH_LOG_IN)
    def test_one_may_close_the_connection_and_say_yes(self: Any) -> None:
        for end in (
            lambda server: server.transport.loseConnection(),
            lambda server: server.transport.abortConnection(),
            lambda server: server.factory.drain(),
            lambda server: server.close(),
        ):

            def authorise(server: Any, request: Any, end: Any = end) -> str:
                end(server)
                return "me"

            world, peer = Authorising.met(self, authorise)
            world.wait(70)
            self.assertTrue(peer.gone)
            self.assertEqual(world.tracebacks, [])

    @only(*WITH_LOG_IN)
    def test_one_that_answers_after_the_loss_is_not_heard(self: Any) -> None:
        for answer in ("me", Boom("late")):
            asked: list[Deferred[Any]] = []

            def authorise(server: Any, request: Any, asked: Any = asked) -> Deferred[Any]:
                asked.append(Deferred(lambda deferred: None))
                return asked[-1]

            world, peer = Authorising.met(self, authorise)
            peer.cut()
            world.wait(1)
            if not asked[0].called:
                asked[0].callback(answer) if answer == "me" else asked[0].errback(answer)
            self.assertEqual(world.tracebacks, [])
            self.assertFalse(peer.server.established)
            self.assertEqual(world.factory.counters["rejected"], 0)

    @only(*WITH_LOG_IN)
    def test_one_that_never_answers_ends_in_time(self: Any) -> None:
        world, peer = Authorising.met(self, lambda server, request: Deferred())
        world.wait(70)
        self.assertTrue(peer.gone)
        self.assertEqual(world.tracebacks, [])

    @only(*WITH_LOG_IN)
    def test_one_that_raises_is_a_refusal_with_a_traceback(self: Any) -> None:
        def authorise(server: Any, request: Any) -> str:
            raise Boom("asked")

        world, peer = Authorising.met(self, authorise)
        world.wait(70)
        self.assertTrue(peer.gone)
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 1)
        self.assertEqual(world.factory.counters["rejected"], 1)

    @only(*WITH_LOG_IN)
    def test_one_of_the_wrong_type_lets_nobody_in(self: Any) -> None:
        """``return False`` let everybody in, and so did what asyncio had not awaited yet."""
        answers: list[Any] = [False, 7, b"bytes", succeed(True), iter(()), "me"]
        world = self.world(SafeSink(), hooks={"authorise": lambda server, request: answers.pop(0)})
        while answers:
            peer = world.meet()
            self.ignore(peer.client.whenEstablished())
            world.pump()
            self.assertEqual(peer.stands, not answers)
        self.soon(world, peer.send(b"x"), 1)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 5)

    @only(*WITH_LOG_IN)
    def test_a_server_that_stops_meanwhile_is_gone_in_time(self: Any) -> None:
        asked: list[Deferred[Any]] = []

        def authorise(server: Any, request: Any) -> Deferred[Any]:
            asked.append(Deferred())
            return asked[-1]

        world, peer = Authorising.met(self, authorise)
        drained = world.factory.drain()
        world.pump()
        if not asked[0].called:
            asked[0].callback("me")
        world.wait(6)
        self.successResultOf(drained)
        self.assertTrue(peer.gone)
        self.assertEqual(world.tracebacks, [])


over_all(globals(), Authorising)


# ── A server names its sessions, and sends to one of them where its protocol can ──

PUSHED: dict[str, Any] = {
    "micromsg2": lambda factory, client: factory.push(client, "orders", b"x"),
    "sabc": lambda factory, client: factory.push(client, b"x"),
    "sabc-ws": lambda factory, client: factory.push(client, b"x"),
    "umq": lambda factory, client: factory.push(client, "x"),
}


class Naming:
    def test_every_session_has_a_name_by_which_it_is_found(self: Any) -> None:
        world = self.world(SafeSink())
        for _ in range(3):
            peer = world.join()
            self.ignore(peer.send())
            world.wait(1)
        sessions = list(world.factory.liveConnections)
        names = [session.session for session in sessions]
        self.assertEqual(len(set(names)), 3)
        self.assertEqual([world.factory.sessionNamed(name) for name in names], sessions)
        self.assertEqual([shown["session"] for shown in world.factory.sessions()], names)
        self.assertIsNone(world.factory.sessionNamed("nobody"))
        world.peers[0].cut()
        world.wait(1)
        self.assertIsNone(world.factory.sessionNamed(names[0]))
        self.assertIs(world.factory.sessionNamed(names[1]), sessions[1])

    @only(*LOG_IN)
    def test_the_sessions_of_a_client_are_found_by_its_name(self: Any) -> None:
        checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right", you=b"right")
        world = self.world(SafeSink(), portal=self.case.portal([checker]))
        for name in ("me", "you", "me"):
            self.soon(world, world.log_in(name, "right"), 2)
        self.soonFails(world, world.log_in("me", "wrong"), seconds=5)
        mine = world.factory.sessionsOf("me")
        self.assertEqual([one.clientId for one in mine], ["me", "me"])
        self.assertEqual(mine, [one for one in world.factory.liveConnections if one in mine])
        self.assertEqual(world.factory.sessionsOf("nobody"), [])

    @only(*BOTH_WAYS)
    def test_one_of_them_is_sent_to(self: Any) -> None:
        world = self.world(SafeSink())
        got: list[list[bytes]] = []
        for _ in range(3):
            bodies: list[bytes] = []
            got.append(bodies)
            hook = self.hook(bodies)
            world.join(hooks={"message": hook})
        sessions = list(world.factory.liveConnections)
        for session in sessions:
            session.link.clientId = "me"
        sessions[2].link.clientId = "you"
        self.soon(world, PUSHED[self.case.name](world.factory, "me"), 1)
        self.assertEqual(got, [[], [b"x"], []])
        nobody: Deferred[Any] = PUSHED[self.case.name](world.factory, "nobody")
        self.failureResultOf(nobody, ConnectionClosed)
        world.peers[1].cut()
        self.soon(world, PUSHED[self.case.name](world.factory, "me"), 1)
        self.assertEqual(got, [[b"x"], [b"x"], []])

    def hook(self: Any, bodies: list[bytes]) -> Any:
        def received(session: Any, message: Any) -> Any:
            bodies.append(message.body)
            return None if self.case.name == "micromsg2" else succeed(b"")

        return received


over_all(globals(), Naming)


# ── A line when a session begins and one when it ends; refused log-ins are told, sec ──

BEGAN = r"^\S+: session \S+-\d+ of \S+( \('.*'\))? began$"
ENDED = r"^\S+: session \S+-\d+ of \S+( \('.*'\))? ended after 5\.0 s and 2 messages: \w.*[^.]$"


class SessionLines:
    def test_a_session_is_told_of_twice_where_that_was_asked_for(self: Any) -> None:
        world = self.world(SafeSink())
        world.factory.logSessions()
        before = world.clock.seconds()
        peer = world.join()
        for _ in range(2):
            self.ignore(peer.send())
        world.pump()
        world.wait(before + 5 - world.clock.seconds(), 0.5)
        began = [line for line in world.lines() if re.search(BEGAN, line)]
        self.assertEqual(len(began), 1, world.lines())
        self.assertEqual([line for line in world.lines() if " ended after " in line], [])
        self.ignore(world.factory.drain())
        world.wait(1, 0.1)
        ended = [line for line in world.lines() if " ended after " in line]
        self.assertEqual(len(ended), 1, world.lines())
        self.assertRegex(ended[0].replace("5.1 s", "5.0 s"), ENDED)
        events = [event for event in world.logged if event.get("event", "")[:7] == "session"]
        objects = [json.loads(line_of(event)) for event in events]
        self.assertEqual([one["event"] for one in objects], ["session began", "session ended"])
        for one in objects:
            self.assertEqual(one["protocol"], world.factory.protocolName)
            self.assertTrue(one["session"].startswith(one["protocol"]))
            self.assertIn("peer", one)
            self.assertRegex(one["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            self.assertEqual(one["level"], "info")
        self.assertEqual(objects[1]["messages"], 2)

    def test_nothing_is_told_of_them_else(self: Any) -> None:
        world = self.world(SafeSink())
        peer = world.join()
        self.ignore(peer.send())
        world.pump()
        self.ignore(world.factory.drain())
        world.wait(1, 0.1)
        self.assertEqual([line for line in world.lines() if "session" in line], [])

    @only(*LOG_IN)
    def test_the_line_names_who_has_logged_in(self: Any) -> None:
        checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right")
        world = self.world(SafeSink(), portal=self.case.portal([checker]))
        world.factory.logSessions()
        self.ignore(world.log_in("me", "right"))
        world.wait(1, 0.1)
        began = [line for line in world.lines() if line.endswith("('me') began")]
        self.assertEqual(len(began), 1, world.lines())


over_all(globals(), SessionLines)


PREPARED, WRONG = "p\u00e4ss\u00a0:w\u00f6rd\u00ad", "p\u00e4ss"  # SASLprep: a blank, and nothing
SERVERS: dict[str, tuple[str, ...]] = {"sabc": (), "umq": (), "mtl": ("--destination=ingest",)}


Passwd = Callable[..., str]


@pytest.fixture
def passwd(monkeypatch: pytest.MonkeyPatch) -> Passwd:
    def told(*words: str | Path, password: str = "secret", status: int = 0) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(password + "\n"))
        return msgproto("passwd", *words, status=status)

    return told


@pytest.fixture
def users(launch: Launcher, passwd: Passwd) -> Path:
    """RD-28: two users, one of whom has a plain password."""
    file = launch.directory / "users"
    file.write_text("# who may\nold:plain\n")
    assert passwd(file, "new", password=PREPARED) == "new: added\n"
    return file


def serve(launch: Launcher, auth: str) -> tuple[Launched, dict[str, str]]:
    loopback = 'endpoint = "tcp:0:interface=127.0.0.1"'
    (launch.directory / "g.toml").write_text(
        f'[sabc]\n{loopback}\nauth = "{auth}"\n[umq]\n{loopback}\nauth = "{auth}"\n'
        f'[mtl]\nendpoint = "tcp://127.0.0.1:*"\nauth = "{auth}"\n'
    )
    server = launch("gateway", "--config=g.toml")
    return server, {name: server.address(name) for name in SERVERS}


def logged_in(launch: Launcher, name: str, address: str, user: str, password: str) -> bool:
    (launch.directory / "password").write_text(password + "\n")
    words = ("send", name, address, "--count=1", f"--user={user}", "--password-file=password")
    return launch.run(*words, *SERVERS[name]).returncode == 0


@pytest.mark.parametrize("scheme", ["passwords", "file"])
def test_every_server_takes_the_right_password_alone(
    launch: Launcher, users: Path, scheme: str
) -> None:
    """RD-28: PLAIN and SCRAM; twisted.cred's own scheme reads plain passwords alone."""
    _, addresses = serve(launch, f"{scheme}:users")
    for name, address in addresses.items():
        assert logged_in(launch, name, address, "old", "plain"), name
        assert logged_in(launch, name, address, "new", PREPARED) is (scheme == "passwords"), name
        wrong = (("new", WRONG), ("old", "pla"), ("nobody", "plain"))
        for user, password in wrong if scheme == "passwords" else wrong[1:2]:
            assert not logged_in(launch, name, address, user, password), name


def test_a_file_that_cannot_be_read_any_more_is_told_to_the_operator(
    launch: Launcher, users: Path
) -> None:
    server, addresses = serve(launch, "passwords:users")
    users.unlink()
    for count, (name, address) in enumerate(addresses.items(), 1):
        assert not logged_in(launch, name, address, "new", PREPARED), name
        server.line("password file .*users: No such file or directory", nth=count)


def test_the_file_has_no_password_and_is_its_owners(passwd: Passwd, users: Path) -> None:
    text = users.read_text()
    assert "p\u00e4ss" not in text
    assert re.match(r"# who may\nold:plain\nnew:SCRAM-SHA-256\$100000:[\w+/]{43}=\$", text)
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert passwd(users, "old", password="x") == "old: changed\n"
    names = [line.partition(":")[0] for line in users.read_text().splitlines()]
    assert names == ["# who may", "old", "new"]
    assert passwd(users, "new", "--delete") == "new: removed\n"
    assert users.read_text().count("\n") == 2
    assert sorted(os.listdir(users.parent)) == ["users"]


def test_a_mark_that_an_editor_puts_in_front_is_no_part_of_a_name(
    passwd: Passwd, tmp_path: Path
) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"\xef\xbb\xbfada:plain\n")
    assert passwd(file, "ada") == "ada: changed\n"
    assert file.read_bytes().startswith(b"ada:SCRAM")


def test_a_change_leaves_lines_of_others_as_they_are(passwd: Passwd, tmp_path: Path) -> None:
    """Some passwords have a carriage return in them, and some files end each line with one."""
    file = tmp_path / "users"
    others = b"# who\r\n\ncr:pa\rss\nx\xff:y\x0bz\x1c\x85\n\r\nlast:\r\r"
    file.write_bytes(others)
    assert passwd(file, "new") == "new: added\n"
    assert file.read_bytes().startswith(others + b"\nnew:")
    assert passwd(file, "new", "--delete") == "new: removed\n"
    assert file.read_bytes() == others + b"\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("users", "a:b"), "no :"),
        (("users", "a\nb"), "no : and no control characters"),
        (("users", ""), "1 to 255 bytes"),
        (("users", "n" * 254 + "\xe4"), "1 to 255 bytes"),
        (("users", "#a"), "begin with #"),
        (("users", "a\udcff"), "no : and no control characters"),
        (("users", "nobody", "--delete"), "has no user 'nobody'"),
        (("missing/users", "me"), "missing/users: No such file or directory"),
        (("pipe", "me"), "pipe is no file that could be replaced: name another one"),
        (("pipe", "me", "--delete"), "pipe is no file that could be replaced"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_changes_nothing(
    passwd: Passwd,
    users: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    before = users.read_bytes()
    monkeypatch.chdir(users.parent)
    os.mkfifo("pipe")  # /dev/null was replaced by a file
    told = passwd(*words, status=2)
    assert said in told and told.count("\n") == 1
    assert users.read_bytes() == before


def set_password(launch: Launcher, users: Path, name: str, password: bytes) -> Launched:
    word = launch.directory / f"password of {name}"
    word.write_bytes(password)
    with word.open() as stdin:
        return launch("passwd", users, name, stdin=stdin.fileno())


def test_a_password_that_is_no_text_is_one_line(launch: Launcher, users: Path) -> None:
    before = users.read_bytes()
    refused = set_password(launch, users, "new", b"p\xff\n")
    refused.line("^msgproto passwd: the password is not UTF-8; nothing is changed$")
    assert users.read_bytes() == before


def test_users_that_are_added_at_once_are_all_there(launch: Launcher, users: Path) -> None:
    names = [f"user{number}" for number in range(6)]
    for one in [set_password(launch, users, name, b"secret\n") for name in names]:
        one.line("added")
    kept = {line.partition(":")[0] for line in users.read_text().splitlines()}
    assert kept == {"# who may", "old", "new", *names}


def test_an_empty_password_is_refused(passwd: Passwd, users: Path) -> None:
    before = users.read_bytes()
    assert "an empty password; nothing is changed" in passwd(users, "new", password="", status=2)
    assert users.read_bytes() == before


def test_a_full_disk_changes_nothing(passwd: Passwd, users: Path) -> None:
    before = users.read_bytes()
    with patch.object(os, "fsync", side_effect=OSError(28, "No space left on device")):
        assert "No space left on device" in passwd(users, "new", status=2)
    assert (users.read_bytes(), os.listdir(users.parent)) == (before, ["users"])


def test_on_a_terminal_a_password_is_typed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["one", "another", "one", "one"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(typed))
    users = tmp_path / "users"
    name = "n" * 255
    assert "are not the same; nothing is changed" in msgproto("passwd", users, name, status=2)
    assert not users.exists()
    assert msgproto("passwd", users, name) == f"{name}: added\n"


@pytest.mark.parametrize("scheme", ["passwords", "file"])
def test_a_file_with_plain_passwords_is_warned_of(
    launch: Launcher, passwd: Passwd, users: Path, scheme: str
) -> None:
    """RD-28: by ``check``, and in the log of the server; the remedy ends it."""
    server, _ = serve(launch, f"{scheme}:users")
    checked = launch.run("check", "--file-only", "g.toml").stdout
    for name in SERVERS:
        said = f"1 of 2 passwords in {users} are plain text: msgproto passwd"
        assert f"{name}: warning: {said}" in checked
        server.line(f"{name}: {said}")
    passwd(users, "old", password="plain")
    assert "plain text" not in launch.run("check", "g.toml").stdout
    server.end()
    _, addresses = serve(launch, "passwords:users")
    told = launch.run("send", "mtl", addresses["mtl"], "--count=1")
    assert "the server wants a log-in, and none of its kinds can be used" in told.stderr
    for name, address in addresses.items():
        assert logged_in(launch, name, address, "old", "plain")
