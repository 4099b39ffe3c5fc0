"""SASL and CURVE on real sockets: who is let in, and as whom."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from twisted.cred.checkers import AllowAnonymousAccess, InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import UsernamePassword
from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent, globalLogPublisher

from tests.contract.sending import Bodies
from tests.mtl.cases import (
    LOOPBACK,
    HeldSink,
    MtlCase,
    curve_keys,
    keyed,
    reactor,
    run,
    taking,
    until,
)
from tests.mtl.plain import Flow, Plain
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.cli.send import deliver
from twisted_msgproto.core.errors import ConfigurationError, Refused, TimedOut
from twisted_msgproto.mtl import (
    CurveClient,
    CurveServer,
    MtlServerFactory,
    command,
    credentials,
    serve,
)
from twisted_msgproto.net import PasswordFile
from twisted_msgproto.net.authentication import portal_over, sasl
from twisted_msgproto.net.clients.command_types import SendOptions


def checkers() -> list[Any]:
    return [InMemoryUsernamePasswordDatabaseDontUse(me=b"secret", you=b"word")]


class Cycle:
    """A client's cycle that responds as a test wants it to, and keeps what it was asked."""

    def __init__(self, mechanism: str, respond: Callable[[bytes | None], bytes]) -> None:
        self.mechanism, self.finished = mechanism, True
        self.heard: list[bytes | None] = []
        self._respond = respond

    def respond(self, challenge: bytes | None) -> bytes:
        self.heard.append(challenge)
        return self._respond(challenge)


class Authentication(MtlCase):
    def authenticating(self, *more: Any, **options: Any) -> MtlServerFactory:
        return self.server(portal=portal_over([*checkers(), *more]), **options)

    async def refused(self, factory: MtlServerFactory, cycle: Cycle) -> tuple[int, str]:
        """What a client is told that logs in like this, in vain."""
        client = self.client(factory.addresses[0])
        await client.open("host")
        error = await self.assertFailure(client.authorize(lambda names: cycle), Refused)
        await client.close()
        return error.code, str(error)

    @run
    async def test_scram_plain_and_anonymous__MT_07__MT_08(self) -> None:
        factory = self.authenticating(AllowAnonymousAccess())
        for credential, user in (
            (credentials("me", "secret"), "me"),
            (lambda names: sasl.PlainClient("you", "word"), "you"),
            (credentials(), None),
        ):
            client = self.client(factory.addresses[0])
            self.assertEqual(await client.open("host"), [])
            self.assertEqual(await client.authorize(credential), ["test", "queue", "ingest"])
            (session,) = factory.liveConnections
            self.assertEqual(session.clientId, user)
            await client.open("again")
            await client.authorize(credential)
            await client.close()
            await until(lambda: not factory.liveConnections)

    @run
    async def test_unknown_users_cannot_be_told_from_wrong_passwords(self) -> None:
        """MT-08: the same steps with as long a salt, the same answer."""
        file = self.mktemp()
        words = [sys.executable, "-m", "twisted_msgproto", "passwd", file, "me"]
        subprocess.run(words, input=b"secret\n", capture_output=True, check=True)
        of_file = self.server(portal=portal_over([PasswordFile(file)]))
        for factory, make in (
            (self.authenticating(), sasl.ScramClient),
            (self.authenticating(), sasl.PlainClient),
            (of_file, sasl.ScramClient),
        ):
            seen = []
            for user, password in (("me", "wrong"), ("nobody", "secret")):
                inner = make(user, password)
                cycle = Cycle(inner.mechanism, inner.respond)
                told = await self.refused(factory, cycle)
                steps = [
                    one and [(len(part), part.count(b"=")) for part in one.split(b",")]
                    for one in cycle.heard
                ]
                seen.append((told, steps))
            self.assertEqual(seen[0], seen[1])

    @run
    async def test_a_client_authenticates_again_by_itself(self) -> None:
        """MT-07: its flows get leases again, and nothing is lost."""
        sink = HeldSink()
        factory = self.authenticating(sink=sink)
        client = self.client(factory.addresses[0], limits={"liveness": 0.2})
        await client.open("host")
        await client.authorize(credentials("me", "secret"))
        await client.profile("queue")
        got: list[bytes] = []
        reader = await client.reader(["a"], "full", taking(got, lambda: reader))
        await reader.summon("a")
        writer = await client.writer(["a"])
        for number in range(4):
            await writer.send("a", b"%d" % number)
            (session,) = factory.liveConnections
            session.withdrawAuthentication()
        await until(lambda: len(set(got)) == 4)
        self.assertEqual(sorted(set(got)), [b"0", b"1", b"2", b"3"])
        self.assertEqual(sink.batches[-1].client_id, "me")

    @run
    async def test_a_broken_response_is_a_failed_attempt__MT_08(self) -> None:
        factory = self.authenticating()
        for mechanism, response in (
            ("PLAIN", b""), ("PLAIN", b"a\0b"), ("PLAIN", b"other\0me\0secret"),
            ("PLAIN", b"\0\xff\0x"), ("PLAIN", b"\0\0x"), ("SCRAM-SHA-256", b"n,,x"),
            ("SCRAM-SHA-256", b"\xff"), ("PLAIN", b"\0" + b"x" * 256 + b"\0x"),
            ("SCRAM-SHA-256", b"n,,n=" + b"x" * 256 + b",r=abc"),
        ):  # fmt: skip
            cycle = Cycle(mechanism, lambda challenge, response=response: response)  # type: ignore[misc]
            code, _ = await self.refused(factory, cycle)
            self.assertEqual(code, 401)
        scram = sasl.ScramClient("me", "secret")
        # Its last response is empty.
        chatty = Cycle(scram.mechanism, lambda challenge: scram.respond(challenge) or b"thanks")
        code, _ = await self.refused(factory, chatty)
        self.assertEqual(code, 401)

    @run
    async def test_a_mechanism_of_ones_own(self) -> None:
        """MT-08: on both sides, with a challenge; whoever fails is told nothing."""

        class Riddle(sasl.SaslMechanism):
            name = "RIDDLE"

            def begin(self, login: sasl.Login) -> sasl.Respond:
                users: list[bytes] = []

                def respond(response: bytes) -> Deferred[Any]:
                    if not users:
                        users.append(response)
                        return succeed(b"what is it?")
                    if response != b"time":
                        raise sasl.SaslRefused("wrong")
                    return login(UsernamePassword(users[0], b"secret"), users[0].decode())

                return respond

        class Closed(sasl.SaslMechanism):
            name = "CLOSED"

            def begin(self, login: sasl.Login) -> sasl.Respond:
                raise sasl.SaslRefused("not today")

        factory = self.authenticating(mechanisms=[Riddle(), Closed()])
        self.assertEqual(await self.offered(factory), ["RIDDLE", "CLOSED"])
        self.assertEqual(
            (await self.refused(factory, Cycle("CLOSED", lambda challenge: b"")))[0], 401
        )

        def guessing(user: bytes, guess: bytes) -> Cycle:
            return Cycle("RIDDLE", lambda challenge: user if challenge is None else guess)

        for user, guess in ((b"me", b"a shoe"), (b"nobody", b"time")):
            cycle = guessing(user, guess)
            code, _ = await self.refused(factory, cycle)
            self.assertEqual((code, cycle.heard), (401, [None, b"what is it?"]))
        client = self.client(factory.addresses[0])
        await client.open("host")
        await client.authorize(lambda names: guessing(b"me", b"time"))
        self.assertIn("me", [session.clientId for session in factory.liveConnections])

    async def offered(self, factory: MtlServerFactory) -> list[str]:
        client = self.client(factory.addresses[0].replace("0.0.0.0", "127.0.0.1"))
        await client.open("host")
        await client.close()
        return list(client.link.machine.mechanisms)

    @run
    async def test_plain_is_for_protected_transports_unless_forced__MT_08(self) -> None:
        portal = portal_over([*checkers(), AllowAnonymousAccess()])
        off: dict[str, Any] = {"listen": ["tcp://0.0.0.0:*"], "data": None, "insecure": True}
        with self.assertRaisesRegex(ConfigurationError, "no mechanism is left"):
            self.server(portal=portal, mechanisms=[sasl.Plain()], **off)
        scram, plain, anonymous = "SCRAM-SHA-256", "PLAIN", "ANONYMOUS"
        for options, names in (
            ({}, [scram, plain, anonymous]),
            (off, [scram, anonymous]),
            ({**off, "forcePlain": True}, [scram, plain, anonymous]),
        ):
            self.assertEqual(await self.offered(self.server(portal=portal, **options)), names)

    @run
    async def test_a_command_reveals_a_password_to_this_machine_alone__MT_08(self) -> None:
        factory = self.authenticating(mechanisms=[sasl.Plain()])
        port = factory.addresses[0].rpartition(":")[2]
        for host, good in (("127.0.0.1", True), ("0.0.0.0", False)):
            where = f"tcp://{host}:{port}"  # the second is here, too, which its name does not say
            options = SendOptions(endpoint=where, user="me", password="secret")
            sent = deliver(reactor, command, options, Bodies([b"x"], 1), Counted(), 5.0)
            if good:
                await sent
                continue
            with self.assertRaisesRegex(Refused, "none of the server's mechanisms"):
                await sent

    def test_clients_choose_the_strongest_and_reveal_nothing_unasked__MT_08(self) -> None:
        choose = credentials("me", "x")
        self.assertIsInstance(choose(["PLAIN", "SCRAM-SHA-256"]), sasl.ScramClient)
        self.assertIsNone(choose(["PLAIN", "ANONYMOUS"]))
        self.assertIsInstance(credentials("me", "x", reveal=True)(["PLAIN"]), sasl.PlainClient)
        wrong: Any = "no"
        self.assertRaises(TypeError, credentials, "me", "x", reveal=wrong)
        self.assertIsNone(credentials()(["PLAIN"]))
        for cycle in (sasl.PlainClient("a", "b"), sasl.AnonymousClient()):
            cycle.respond(None)
            with self.assertRaises(ValueError):
                cycle.respond(b"challenge")
        scram = sasl.ScramClient("a", "b")
        scram.respond(None)
        with self.assertRaises(ValueError):
            scram.respond(b"nonsense")
        scram = sasl.ScramClient("a", "b")
        scram.respond(None)
        with self.assertRaises(ValueError):
            scram.respond(None)


def test_a_response_of_plain_is_what_rfc_4616_says__MT_08() -> None:
    assert base64.b64encode(sasl.PlainClient("tim", "tanstaaftanstaaf").respond(None)) == (
        b"AHRpbQB0YW5zdGFhZnRhbnN0YWFm"
    )


@pytest.mark.parametrize("asked", [1, 4095, 4096, 20_000, 20_001, 10**7, 10**12])
def test_a_server_cannot_have_a_client_compute_for_ever_nor_too_little__NB_07(asked: int) -> None:
    """MT-08: 10**12 rounds take days; a single one makes the password easy to guess.

    The library has bounds of its own: the lower one is the same, the upper one takes seconds.
    """
    cycle = credentials("me", "secret", scram_iterations=20_000)(["SCRAM-SHA-256"])
    assert cycle is not None
    nonce = cycle.respond(None).rpartition(b"r=")[2].decode()
    challenge = f"r={nonce}more,s=c2FsdHNhbHRzYWx0,i={asked}".encode()
    if sasl.SCRAM_ITERATIONS <= asked <= 20_000:
        assert cycle.respond(challenge).startswith(b"c=")
        return
    ours = rf"asks for {asked} rounds of SCRAM, scram_iterations allows 20000"
    with pytest.raises(ValueError, match=ours if 20_000 < asked <= 10**7 else None):
        cycle.respond(challenge)
    assert not cycle.finished


def test_keys_of_curve_are_checked_when_they_are_given() -> None:
    """MT-31: not by a socket, when somebody listens; no line shows what is secret."""
    (public, secret), (other, _) = zmq.curve_keypair(), zmq.curve_keypair()
    for wrong in (b"", b"abc", secret[:-1], secret + b"0", secret.decode(), b"\xff" * 40, None):
        for server in ((wrong, {}), (secret, {wrong: "robot"})):
            with pytest.raises(ConfigurationError, match="a key of 40 bytes"):
                CurveServer(*server)
        for client in ((wrong, public, secret), (other, wrong, secret), (other, public, wrong)):
            with pytest.raises(ConfigurationError, match="a key of 40 bytes"):
                CurveClient(*client)
    with pytest.raises(ConfigurationError, match="public is not the public key of secret"):
        CurveClient(public, other, secret)
    for keys in (CurveServer(secret, {other: "robot"}), CurveClient(other, public, secret)):
        assert secret.decode() not in repr(keys)


def test_the_pages_lines_make_keys(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs/protocols/mtl.md").read_text()
    lines = page[page.index("umask 077") :].partition("\n```")[0]
    lines = lines.replace("python -c", f"{sys.executable} -c")
    subprocess.run(["sh", "-ec", lines], cwd=tmp_path, check=True)
    read = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    public, name = read["clients.keys"].split()
    CurveServer(read["server.secret"], {public: name.decode()})
    CurveClient(read["server.public"], public, read["client.secret"])
    assert tmp_path.joinpath("server.secret").stat().st_mode & 0o077 == 0


class Curve(MtlCase):
    @contextmanager
    def logged(self) -> Iterator[list[str]]:
        """Lines of who is not let in."""
        lines: list[str] = []

        def observe(event: dict[str, Any]) -> None:
            if event.get("reason") == "hand-shake":
                lines.append(formatEvent(event))

        globalLogPublisher.addObserver(observe)
        try:
            yield lines
        finally:
            globalLogPublisher.removeObserver(observe)

    @run
    async def test_wrong_keys_and_no_keys_get_nowhere(self) -> None:
        """MT-31, NB-13: both sides say what is wrong; and the next client is served."""
        server_keys, client_keys = curve_keys()
        factory = self.server(curve=server_keys)
        public, secret = zmq.curve_keypair()
        other = public.decode()
        for keys, kind, ours, theirs in (
            (None, Refused, "it wants CURVE keys", "it has no CURVE keys, and --curve-key wants"),
            (replace(client_keys, public=public, secret=secret), Refused,
             "it does not know our CURVE key", f"its CURVE key {other} is not in the file"),
            (replace(client_keys, server=public), TimedOut, "the hand-shake fails",
             "it has another public key for this server than that of --curve-key"),
        ):  # fmt: skip
            with self.logged() as lines:
                limits: dict[str, object] = {"request-timeout": 0.5 if kind is TimedOut else 3.0}
                told = 0
                # Of some connections libzmq tells a side only that they ended; of the next it tells
                # why.
                while told < 2 or not lines:
                    client = self.client(factory.addresses[0], curve=keys, limits=limits)
                    for _ in range(2):
                        failed = await self.assertFailure(client.open("host"), Refused, TimedOut)
                        if isinstance(failed, kind):
                            self.assertIn(ours, str(failed))
                            told += 1
                    await client.close()
            # libzmq may have closed a connection before it told whose it was.
            self.assertLessEqual(len(lines), 2, lines)
            for line in lines:
                self.assertIn(f"not let in: {theirs}", line)
        self.assertEqual(factory.counters["requests"], 0)
        self.assertGreater(factory.counters["fault:hand-shake"], 3)
        client = self.client(factory.addresses[0], curve=client_keys)
        await client.open("host")
        server_keys.authorized[public] = "new"  # type: ignore[index]
        keys = replace(client_keys, public=public, secret=secret)
        await self.client(factory.addresses[0], curve=keys).open("host")

    @run
    async def test_a_key_for_a_server_without_is_of_no_use(self) -> None:
        """MT-31: and the same client is served when the server has its --curve-key."""
        server_keys, client_keys = curve_keys()
        factory = self.server()
        with self.logged() as lines:
            while not lines:
                client = self.client(
                    factory.addresses[0], curve=client_keys, limits={"request-timeout": 0.5}
                )
                await self.assertFailure(client.open("host"), Refused, TimedOut)
                await client.close()
        self.assertIn("not let in: it wants CURVE, and there is no --curve-key", lines[0])
        factory = self.server(curve=server_keys)
        await self.client(factory.addresses[0], curve=client_keys).open("host")

    def test_off_this_machine_needs_curve_or_insecure(self) -> None:
        """MT-31: control and data alike."""
        for control, data in (
            (["tcp://0.0.0.0:*"], LOOPBACK), ([LOOPBACK], "tcp://*:*"),
            ([LOOPBACK, "tcp://[::]:*"], None),
        ):  # fmt: skip
            with self.assertRaisesRegex(ConfigurationError, "--insecure"):
                MtlServerFactory().listen(control, data)
        with self.assertRaisesRegex(ConfigurationError, "--insecure"):
            serve("tcp://0.0.0.0:0")
        self.server(listen=["tcp://0.0.0.0:*"], data=None, insecure=True)

    @run
    async def test_a_lease_is_of_no_use_under_another_key__MT_11__MT_30(self) -> None:
        server_keys, owner = curve_keys()
        public, secret = zmq.curve_keypair()
        server_keys.authorized[public] = "thief"  # type: ignore[index]
        factory = self.server(curve=server_keys)
        thief = replace(owner, public=public, secret=secret)

        def steal() -> None:
            with (
                Plain(factory.addresses[0], prepare=keyed(owner)) as mine,
                Plain(factory.addresses[0], prepare=keyed(thief)) as other,
            ):
                mine.ready("ingest")
                flow = mine.flow("Writer", ["a"], lease=False)
                stolen = Flow(other.dealer(factory.addresses[1]), flow.token)
                self.assertEqual(stolen.lease(), b"403")
                self.assertEqual(flow.lease(), b"200")

        with capturedLogs() as lines:
            await deferToThread(steal)
        (line,) = [formatEvent(one) for one in lines if one.get("reason") == "lease"]
        self.assertIn("a data flow is refused: it is leased for another client's CURVE key", line)
        self.assertEqual(factory.counters["fault:lease"], 1)
