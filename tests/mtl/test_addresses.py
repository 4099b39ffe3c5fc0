"""Addresses: ipc, those in use, those which are none."""

from __future__ import annotations

from twisted.internet.defer import ensureDeferred

from tests.mtl.cases import MtlCase
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.mtl import MtlClient, MtlServerFactory


class Addresses(MtlCase):
    def test_ipc_takes_control_and_data(self) -> None:
        """MT-12, MT-31"""
        path = self.mktemp()
        factory = self.server(listen=[f"ipc://{path}"], data=None)
        self.assertEqual(factory.machine.data_port, 0)
        self.assertEqual(factory.addresses, [f"ipc://{path}"])

        async def talk() -> None:
            client = await self.ready(factory, "ingest")
            writer = await client.writer(["a"])
            await writer.send("a", b"x")

        return ensureDeferred(talk())  # type: ignore[return-value]

    def test_an_address_in_use_is_the_operators_trouble(self) -> None:
        """MT-24"""
        factory = self.server()
        other = MtlServerFactory()
        with self.assertRaisesRegex(ConfigurationError, "cannot listen on"):
            other.listen([factory.addresses[0]])
        self.successResultOf(other.drain())

    def test_what_is_no_address_is_said_at_once(self) -> None:
        """MT-24"""
        for address in ("tcp:5049", "tcp://127.0.0.1", "tcp://:1", "tcp://h:99999", "udp://h:1",
                        "ipc://", "", "tcp://127.0.0.1:x"):  # fmt: skip
            with self.assertRaises(ConfigurationError):
                MtlServerFactory().listen([address])
            with self.assertRaises(ConfigurationError):
                MtlClient(address)
        client = self.client("ipc:///tmp/x")
        with self.assertRaises(ConfigurationError):
            client.wire.socket.connect("tcp://not a host:5")
