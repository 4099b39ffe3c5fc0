/** What a program on the web runs into: hooks that fail, ends at every moment, signals, wrong servers. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { SabcClient, UmqClient } from "../src/index.js";
import { ConnectionClosed, LimitExceeded, Refused, withRequest } from "../src/umq/index.js";
import { FakeWorld, connected, turn } from "./fakes.js";

const GRANTED = "CONNECTED\r\nsession-id::s\r\n\r\n\0";
const TICKS = (id) => `["ticks","${id}"]`;
const later = () => {
  const one = {};
  one.promise = new Promise((resolve, reject) => Object.assign(one, { resolve, reject }));
  return one;
};

test("hooks that throw, now or later, are reported, and the client goes on", async () => {
  const throwing = (what) => () => {
    throw new Error(what);
  };
  const failing = (what) => async () => {
    throw new Error(what);
  };
  for (const hook of [throwing, failing]) {
    const options = { onState: hook("onState"), onOpen: hook("onOpen"), onAttribute: hook("onAttribute") };
    const { client, world, socket } = await connected(options);
    assert.equal(client.state, "open");
    socket.says("S:a=1", "X:a", "C1:x");
    await turn();
    assert.deepEqual(socket.take(), ["E1:6 not an RPC server"]);
    assert.deepEqual(world.reported, ["onState", "onOpen", "onState", "onAttribute", "onAttribute"]);
    await world.pass(100);
    assert.equal(world.sockets.length, 1);
  }
});

test("a hook of updates may be slow or fail: it is waited for and reported", async () => {
  const { client, world, socket } = await connected();
  const work = later();
  const subscribing = client.subscribe(TICKS, () => work.promise);
  socket.says("R1:true", "T1:four");
  await subscribing;
  assert.deepEqual([client._backlog.bytes, client._backlog.messages], [8, 1]);
  work.reject(new Error("the hook failed"));
  await turn();
  assert.deepEqual([client._backlog.bytes, client._backlog.messages], [0, 0]);
  assert.deepEqual(world.reported, ["the hook failed"]);
});

test("a method whose session ended beneath it is no error, and its answer goes nowhere", async () => {
  const works = [later(), later()];
  const { client, world, socket } = await connected({
    methods: {
      slow: withRequest(async ({ session }, number) => {
        await works[number].promise;
        if (number) session.openTopic("A"); // throws ConnectionClosed
        return "done";
      }),
    },
  });
  socket.says('C1:["slow",0]', 'C2:["slow",1]');
  socket.breaks();
  await world.pass(1);
  world.socket.says("W1:");
  await turn();
  world.socket.take();
  for (const work of works) work.resolve();
  await turn();
  assert.deepEqual([world.socket.take(), world.reported, client.state], [[], [], "open"]);
});

test("methods have their object", async () => {
  const { socket } = await connected({ methods: { name: "me", who() { return this.name; } } });
  socket.says('C1:["who"]');
  await turn();
  assert.deepEqual(socket.take(), ['R1:"me"']);
});

test("tools that examine client.remote call nothing", async () => {
  const { client, socket } = await connected();
  assert.equal(JSON.stringify({ remote: client.remote }), '{"remote":{}}');
  assert.throws(() => `${client.remote}`, TypeError);
  assert.equal(await client.remote, client.remote);
  assert.deepEqual(socket.take(), []);
});

test("a timeout is a number of seconds", async () => {
  const { client, socket } = await connected();
  for (const timeout of ["5", NaN, -1, new Date()])
    await assert.rejects(client.call("x", { timeout }), TypeError, String(timeout));
  assert.deepEqual(socket.take(), []);
});

test("close() answers what the peer has called, takes no more, and may be called again", async () => {
  const work = later();
  const { client, socket } = await connected({ onCall: () => work.promise });
  socket.says("C1:x");
  const both = [client.close(), client.close()];
  socket.says("C2:y");
  await turn();
  assert.deepEqual(socket.take(), ["E2:8 the session is closing"]);
  assert.equal(socket.closedWith, null);
  work.resolve("done");
  await Promise.all([...both, client.close()]);
  assert.deepEqual(socket.take(), ["R1:done"]);
  assert.equal(socket.closedWith, 1000);
});

test("close() while the session is made ends it", async () => {
  const world = new FakeWorld();
  const client = new UmqClient("ws://server/", { world });
  const started = assert.rejects(client.start(), ConnectionClosed);
  const call = assert.rejects(client.call("x"), ConnectionClosed);
  await turn();
  assert.deepEqual(world.socket.take(), ["H1:"]);
  await client.close();
  await Promise.all([started, call]);
  assert.equal(world.socket.closedWith, 1000);
  await world.pass(1000);
  assert.equal(world.sockets.length, 1);
});

/** Sockets that open when they are told to. */
class Slow {
  static made = [];
  constructor(url, protocol) {
    if (url === "no URL") throw new SyntaxError("no URL");
    Object.assign(this, { url, protocol, closed: false });
    Slow.made.push(this);
  }

  close() {
    this.closed = true;
  }
}

test("close() while the socket opens closes the socket", async () => {
  const client = new UmqClient(new URL("ws://server/path"), { WebSocket: Slow });
  const started = assert.rejects(client.start(), ConnectionClosed);
  await turn();
  await client.close();
  await started;
  const [{ url, protocol, closed }] = Slow.made.splice(0);
  assert.deepEqual([url, protocol, closed], ["ws://server/path", "umq", true]);
});

test("a signal closes the client at every moment, and its reason is told", async () => {
  const reason = new Error("the page is left");
  await assert.rejects(UmqClient.connect("ws://x/", { WebSocket: Slow, signal: AbortSignal.abort(reason) }), reason);
  assert.deepEqual(Slow.made, []);
  const opening = new AbortController();
  const connecting = assert.rejects(UmqClient.connect("ws://x/", { WebSocket: Slow, signal: opening.signal }), reason);
  await turn();
  opening.abort(reason);
  await connecting;
  assert.equal(Slow.made.splice(0)[0].closed, true);
  const open = new AbortController();
  const { client, socket, world } = await connected({ signal: open.signal });
  const call = assert.rejects(client.call("x"), ConnectionClosed);
  open.abort(reason);
  await call;
  await assert.rejects(client.call("y"), reason);
  assert.equal(await client.closed, reason);
  assert.equal(socket.closedWith, 1000);
  await world.pass(1000);
  assert.equal(world.sockets.length, 1);
});

test("what cannot be connected to at all is told once", async () => {
  const client = new UmqClient("no URL", { WebSocket: Slow });
  await assert.rejects(client.start(), SyntaxError);
  assert.equal(client.state, "closed");
  const world = new FakeWorld();
  const bad = new SabcClient("ws://server/", { world, clientId: "a::b" });
  await assert.rejects(bad.start(), TypeError);
  assert.deepEqual([bad.state, world.socket.closedWith], ["closed", 1000]);
  await assert.rejects(UmqClient.connect("ws://server/", { world, hello: "\ud800" }), TypeError);
});

test("a hello that cannot be had now is asked for again", async () => {
  const world = new FakeWorld();
  const answers = [() => Promise.reject(new TypeError("Failed to fetch")), () => "token"];
  const client = new UmqClient("ws://server/", { world, hello: () => answers.shift()() });
  const started = client.start();
  await world.pass(1);
  assert.deepEqual(world.socket.take(), ["H1:token"]);
  world.socket.says("W1:");
  await started;
});

test("the signal of a subscription concerns its first request alone", async () => {
  const abort = new AbortController();
  const { client, world, socket } = await connected();
  const heard = [];
  const subscribing = client.subscribe(TICKS, ({ payload }) => heard.push(payload), { signal: abort.signal });
  socket.says("R1:true");
  await subscribing;
  abort.abort();
  socket.breaks();
  await world.pass(1);
  world.socket.says("W1:");
  await turn();
  world.socket.says("R1:true", "T1:again");
  assert.deepEqual(heard, ["again"]);
});

test("a signal gives up the attachments of a streamed answer", async () => {
  const abort = new AbortController();
  const { client, socket } = await connected();
  const asked = client.call("file", { streamed: true, signal: abort.signal });
  socket.says("A3:R1:three", Uint8Array.of(1).buffer);
  const { stream } = await asked;
  abort.abort(new Error("enough"));
  await assert.rejects(stream.next(), /enough/);
  const next = client.call("x");
  socket.says(Uint8Array.of(2).buffer, "A1:R2:one", Uint8Array.of(3).buffer, Uint8Array.of(4).buffer);
  assert.deepEqual((await next).attachments, [Uint8Array.of(4)]);
});

test("sABC: the rest of a body is not sent when nobody waits for the answer", async () => {
  const world = new FakeWorld();
  const connecting = SabcClient.connect("ws://server/", { world, clientId: "me", limits: { "part-bytes": 4 } });
  await turn();
  world.socket.says(GRANTED);
  const client = await connecting;
  for (const end of ["refused", "aborted"]) {
    const abort = new AbortController();
    const gate = later();
    let left = false;
    const pieces = async function* () {
      try {
        yield "12345678";
        await gate.promise;
        yield "more";
      } finally {
        left = true;
      }
    };
    world.socket.take();
    const asked = assert.rejects(client.request(pieces(), { signal: abort.signal }));
    await turn();
    const [, id] = /msg-id::(\d+)/.exec(world.socket.take()[0]);
    if (end === "aborted") abort.abort();
    else world.socket.says(`ERROR\r\nsession-id::s\r\nerror-code::413\r\nref-msg-id::${id}\r\n\r\nno\r\n\r\n\0`);
    await asked;
    gate.resolve();
    await turn();
    assert.deepEqual(world.socket.take(), [`MESSAGE\r\nsession-id::s\r\nmsg-id::${id}\r\n\r\n`], end); // SA-20
    assert.equal(left, true);
  }
});

test("sABC: messages that are being worked on are bounded, and what is above is refused", async () => {
  const world = new FakeWorld();
  const work = later();
  const heard = [];
  const connecting = SabcClient.connect("ws://server/", {
    world,
    clientId: "me",
    limits: { "backlog-bytes": 10 },
    onMessage: ({ text }) => (heard.push(text), work.promise),
    onRequest: () => work.promise,
  });
  await turn();
  world.socket.says(GRANTED);
  await connecting;
  world.socket.take();
  const says = (id, kind) =>
    world.socket.says(`MESSAGE\r\nsession-id::s\r\nmsg-id::${id}${kind}\r\n\r\n1234567\r\n\r\n\0`);
  const refusal = (id) => new RegExp(`^ERROR\r\nsession-id::s\r\nerror-code::429\r\nref-msg-id::${id}\r\n`);
  for (const id of [1, 2, 3]) says(id, "\r\nsend-only::yes");
  for (const id of [4, 5]) says(id, "");
  await turn();
  const sent = world.socket.take();
  assert.equal(sent.length, 3);
  for (const [at, id] of [2, 3, 5].entries()) assert.match(sent[at], refusal(id));
  assert.deepEqual(heard, ["1234567"]);
  assert.equal(world.reported.length, 1); // once for all of them
  work.resolve();
  await turn();
  says(6, "\r\nsend-only::yes");
  assert.equal(heard.length, 2);
});

test("wrong servers are ConnectionClosed, with what is known of them", async (t) => {
  const { WebSocket } = await import("ws").catch(() => ({}));
  if (!WebSocket) return t.skip("ws from npm is not installed in clients/js");
  const server = createServer((_, response) => response.end("a page"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = `127.0.0.1:${server.address().port}`;
  const failing = async (url, Client, why, options = {}) => {
    await assert.rejects(Client.connect(url, { clientId: "me", WebSocket, ...options }), (error) => {
      assert.ok(error instanceof ConnectionClosed && !(error instanceof Refused));
      assert.match(error.message, why);
      return true;
    });
  };
  await failing(`ws://${address}/`, UmqClient, /no connection to ws:.*: Unexpected server response: 200/);
  await failing(`wss://${address}/`, SabcClient, /no connection to wss:/);
  server.on("upgrade", (_, socket) => {
    silent.push(socket);
  });
  const silent = [];
  await failing(`ws://${address}/`, UmqClient, /not in 0.05 s/, { limits: { "socket-seconds": 0.05 } });
  for (const socket of silent) socket.destroy();
  await new Promise((resolve) => server.close(resolve));
  await failing(`ws://${address}/`, UmqClient, /ECONNREFUSED/);
});
