"""CURVE: keys which are let in and keys which are not, and who may do without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq
from twisted.internet.threads import deferToThread
from twisted.logger import formatEvent, globalLogPublisher

from tests.mtl.cases import LOOPBACK, HeldSink, MtlCase, run, until
from tests.mtl.plain import Flow, Plain
from twisted_msgproto.core.errors import ConfigurationError, Refused, TimedOut
from twisted_msgproto.mtl import MtlServerFactory
from twisted_msgproto.mtl.zeromq import CurveClient, CurveServer


class Curve(MtlCase):
    def keys(self) -> tuple[CurveServer, CurveClient]:
        public, secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        return (
            CurveServer(secret, {client_public: "robot"}),
            CurveClient(public, client_public, client_secret),
        )

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
    async def test_the_right_key_comes_in_from_anywhere_and_names_the_client(self) -> None:
        """MT-30, MT-31: with any identity; sessions and leases are bound to the key."""
        server_keys, client_keys = self.keys()
        sink = HeldSink()
        factory = self.server(
            sink, curve=server_keys, listen=["tcp://0.0.0.0:*"], data="tcp://0.0.0.0:*"
        )
        address = factory.addresses[0].replace("0.0.0.0", "127.0.0.1")
        client = self.client(address, curve=client_keys)
        await client.open("host")
        await client.profile("queue")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        self.assertEqual(sink.batches[0].client_id, "robot")
        got: list[bytes] = []
        reader = await client.reader(["a"], "full", lambda content: got.append(content.body))
        await reader.summon("a")
        await until(lambda: got == [b"x"])

    @run
    async def test_wrong_keys_and_no_keys_get_nowhere(self) -> None:
        """MT-31, NB-13: both sides say what is wrong; and the next client is served."""
        server_keys, client_keys = self.keys()
        factory = self.server(curve=server_keys)
        public, secret = zmq.curve_keypair()
        other = public.decode()
        for keys, kind, ours, theirs in (
            (None, Refused, "it wants CURVE keys", "it has no CURVE keys, and --curve-key wants"),
            (client_keys._replace(public=public, secret=secret), Refused,
             "it does not know our CURVE key", f"its CURVE key {other} is not in the file"),
            (client_keys._replace(server=public), TimedOut, "the hand-shake fails",
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

    def test_off_this_machine_needs_curve_or_insecure(self) -> None:
        """MT-31: control and data alike."""
        for control, data in (
            (["tcp://0.0.0.0:*"], LOOPBACK), ([LOOPBACK], "tcp://*:*"),
            ([LOOPBACK, "tcp://[::]:*"], None),
        ):  # fmt: skip
            with self.assertRaisesRegex(ConfigurationError, "--insecure"):
                MtlServerFactory().listen(control, data)
        self.server(listen=["tcp://0.0.0.0:*"], data=None, insecure=True)

    @run
    async def test_a_lease_is_of_no_use_under_another_key(self) -> None:
        """MT-11, MT-30"""
        server_keys, owner = self.keys()
        public, secret = zmq.curve_keypair()
        server_keys.authorized[public] = "thief"  # type: ignore[index]
        factory = self.server(curve=server_keys)
        thief = owner._replace(public=public, secret=secret)

        def prepare(keys: CurveClient) -> Any:
            def prepared(socket: Any) -> None:
                socket.curve_serverkey, socket.curve_publickey = keys.server, keys.public
                socket.curve_secretkey = keys.secret

            return prepared

        def steal() -> None:
            with (
                Plain(factory.addresses[0], prepare=prepare(owner)) as mine,
                Plain(factory.addresses[0], prepare=prepare(thief)) as other,
            ):
                mine.ready("ingest")
                flow = mine.flow("Writer", ["a"], lease=False)
                stolen = Flow(other.dealer(factory.addresses[1]), flow.token)
                self.assertEqual(stolen.lease(), b"403")
                self.assertEqual(flow.lease(), b"200")

        await deferToThread(steal)
