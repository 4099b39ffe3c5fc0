"""MTL with clients which have nothing of ours: plain pyzmq from the text alone, and Node's zeromq.

One real server process for all of them; it must serve the next client whatever the one before did.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mtl.plain import SUMMON, Plain
from tests.tools.processes import Launched, launching
from twisted_msgproto.queue import QueueReader

TEST = (["resource"], "none")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mtl")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Launched]:
    with launching(directory) as launch:
        yield launch(
            *("mtl", "-e", "tcp://127.0.0.1:*", "--queue", str(directory / "queue")),
            *("--virtual-host", "test-env", "--limit", "heartbeat=0.4"),
            *("--limit", "liveness=2", "--limit", "prefetch=10"),
            module="twisted",
        )


@pytest.fixture(scope="module")
def address(server: Launched) -> str:
    return server.address("mtl")


def rows(directory: Path, resource: str) -> list[dict[str, Any]]:
    reader = QueueReader(directory / "queue")
    found = [row for batch in reader.read(0, reader.end()) for row in batch.to_pylist()]
    return [row for row in found if row["destination"] == resource]


# ── plain pyzmq ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("correlate", [False, True])
def test_plain_req_and_dealer_from_open_to_content(address: str, correlate: bool) -> None:
    """MT-01, MT-05, MT-06, MT-09, MT-10, MT-11, MT-14, MT-16, MT-18, MT-25; REQ_CORRELATE, too."""
    with Plain(address, correlate=correlate) as client:
        assert client.ask("Connection.Profile", profile="test")[0] == "401"
        status, body = client.open()
        assert (status, body["status"]) == ("201", "Ready")
        assert set(body["profiles"]) == {"test", "queue", "ingest"}
        assert client.ask("connection.PROFILE", profile="TEST") == ("200", {"status": "OK"})
        reader, writer = client.flow("Reader", *TEST), client.flow("Writer", *TEST)
        assert reader.summon("resource") == b"200"
        assert reader.summon("resource") == b"400"
        writer.content("", b"hello")
        sequence, resource, content = reader.get()
        assert (sequence, resource, content) == (1, "resource", b"hello")
        assert reader.dismiss("resource") == b"200"
        assert reader.dismiss("resource") == b"400"
        writer.content("resource", b"nobody reads this")
        assert writer.pong()
        assert reader.quiet()


def test_confirmed_content_is_on_disk(address: str, directory: Path) -> None:
    """MT-19, MT-26: and the row has what the client sent."""
    table = struct.pack(">I", 9) + b"\x03keyt\x01\x01nV"
    with Plain(address) as client:
        writer = client.ready("ingest").flow("Writer", ["disk"])
        for number in range(50):
            last = writer.content("disk" if number % 2 else "", b"%d" % number, table)
        writer.confirmed(last)
    found = rows(directory, "disk")
    assert [row["body"] for row in found] == [b"%d" % number for number in range(50)]
    columns = ("protocol", "kind", "client_id", "peer")
    assert {tuple(row[column] for column in columns) for row in found} == {
        ("mtl", "content", None, "127.0.0.1")
    }
    assert dict(found[0]["fields"]) == {
        "key": "true", "n": "null", "mtl-virtual-host": "test-env", "mtl-profile": "ingest",
    }  # fmt: skip
    assert [int(row["message_id"]) for row in found] == list(range(2, 52))


# ── bad input, and the next client is served ────────────────────────────────────────────────────


def test_identities_of_ones_own_are_turned_away__MT_30(address: str) -> None:
    with Plain(address, identity=b"me") as client:
        assert client.open()[0] == "401"
        # While its owner is there, libzmq does not listen to a second one of the same name.
        second = client.dealer(address, identity=b"me")
        second.send_multipart([b"", b"Connection.Open", b"{}"])
        assert not second.poll(300)
        assert client.open()[0] == "401"
    with Plain(address) as client:
        client.ready("queue")


def test_wrong_frame_counts_and_non_json_get_no_reply__MT_03__MT_13(address: str) -> None:
    with Plain(address) as client:
        dealer = client.dealer(address)
        for count in range(1, 101):
            dealer.send_multipart([b"x"] * count)
        dealer.send_multipart([b"", b"Connection.Open", b"{"])
        dealer.send_multipart([b"", b"Connection.Open", b"{}", b"", b"more"])
        dealer.send_multipart([b"1", b"2", b"", b"Connection.Nothing", b"{}"])
        # Only the last one is well-formed.
        assert dealer.recv_multipart()[:4] == [b"1", b"2", b"", b"401"]
        data = client.ready("queue").flow("Reader", ["frames"])
        for count in (1, *range(3, 101)):
            data.socket.send_multipart([b"\x08"] * count)
        data.send(SUMMON, b"\0")
        data.send(99)
        assert data.pong()
        assert data.quiet(0.1)


# ── another language ────────────────────────────────────────────────────────────────────────────

NODE = r"""
const zmq = require(process.argv[2]);
const [address, count] = [process.argv[3], parseInt(process.argv[4])];
const host = address.slice(0, address.lastIndexOf(":"));

function short(text) {
  const bytes = Buffer.from(text);
  return Buffer.concat([Buffer.from([bytes.length]), bytes]);
}
function header(type, sequence, ...fields) {
  const head = Buffer.alloc(9);
  head.writeUInt8(type, 0); head.writeBigUInt64BE(BigInt(sequence), 1);
  return Buffer.concat([head, ...fields]);
}
async function run() {
  const control = new zmq.Request();
  control.connect(address);
  async function ask(command, body) {
    await control.send([command, JSON.stringify(body)]);
    const [status, reply] = await control.receive();
    return [status.toString(), JSON.parse(reply)];
  }
  async function flow(way, resources, confirm) {
    const [status, reply] = await ask("Connection." + way, {resources, confirm});
    if (status !== "202") throw new Error(status + JSON.stringify(reply));
    const socket = new zmq.Dealer();
    socket.connect(host + ":" + reply.port);
    await socket.send([header(1, 1, short(reply.lease)), ""]);
    await expect(socket, 1);
    return socket;
  }
  async function next(socket) {
    for (;;) {
      const [head, body] = await socket.receive();
      if (head[0] === 8) await socket.send([Buffer.from([9]), ""]);
      else if (head[0] !== 9) return [head, body];
    }
  }
  async function expect(socket, sequence) {
    const [head, body] = await next(socket);
    if (head[0] !== 2 || Number(head.readBigUInt64BE(1)) !== sequence || body.toString() !== "200")
      throw new Error("response " + head.toString("hex") + " " + body);
  }
  const [opened] = await ask("Connection.Open",
    {protocol: {name: "MTL", version: 1}, "virtual-host": "test-env"});
  const [selected] = await ask("connection.profile", {profile: "Queue"});
  const writer = await flow("Writer", ["node"], "full");
  for (let i = 0; i < count; i++)
    await writer.send([header(5, i + 2, short("node"), Buffer.alloc(4)), "body " + i]);
  let confirmed = 0;
  while (confirmed < count + 1) {
    const [head] = await next(writer);
    if (head[0] !== 6) throw new Error("confirm " + head.toString("hex"));
    confirmed = Number(head.readBigUInt64BE(1));
  }
  const reader = await flow("Reader", ["node"], "full");
  await reader.send([header(3, 2, short("node")), ""]);
  await expect(reader, 2);
  const bodies = [];
  while (bodies.length < count) {
    const [head, body] = await next(reader);
    if (head[0] !== 5) throw new Error("content " + head.toString("hex"));
    bodies.push(body.toString());
    await reader.send([header(6, Number(head.readBigUInt64BE(1)), Buffer.from([1])), ""]);
  }
  console.log(JSON.stringify({opened, selected, confirmed, bodies}));
  process.exit(0);
}
run().catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="session")
def node_zeromq(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Node, and npm's zeromq (a prebuilt binary) in a directory of its own."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no node here")
    place = os.environ.get("MSGPROTO_NODE_MODULES")
    if place is None:
        made = tmp_path_factory.mktemp("node")
        ended = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "zeromq@6"],
            cwd=made, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if ended.returncode:
            pytest.skip(f"npm cannot install zeromq here: {ended.stderr[-300:]}")
        place = str(made / "node_modules")
    return node, Path(place) / "zeromq"


def test_node_writes_and_reads(
    address: str, node_zeromq: tuple[str, Path], tmp_path: Path, directory: Path
) -> None:
    """MT-01 … MT-20 by a client in another language on another binding of libzmq."""
    node, module = node_zeromq
    script = tmp_path / "client.js"
    script.write_text(NODE)
    ended = subprocess.run(
        [node, str(script), str(module), address, "200"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    bodies = [f"body {number}" for number in range(200)]
    assert answer == {"opened": "201", "selected": "200", "confirmed": 201, "bodies": bodies}
    assert [row["body"].decode() for row in rows(directory, "node")] == bodies
