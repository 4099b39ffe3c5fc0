/** When a program takes nothing, the socket is not read; nothing is lost, and no time runs meanwhile. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { SabcClient } from "../src/index.js";
import { ConnectionClosed, LimitExceeded } from "../src/umq/index.js";
import { FakeSocket, FakeWorld, turn, connected as umqConnected } from "./fakes.js";

/** What is said while it is paused comes later, as with a real one. */
class PausableSocket extends FakeSocket {
  held = null;

  pause() {
    this.held ??= [];
  }

  resume() {
    const { held } = this;
    this.held = null;
    if (held) this.says(...held);
  }

  says(...messages) {
    for (const message of messages)
      if (this.held) this.held.push(message);
      else super.says(message);
  }
}

class PausableWorld extends FakeWorld {
  open = async () => {
    const socket = new PausableSocket();
    this.sockets.push(socket);
    return socket;
  };
}

const connected = (options = { limits: { "backlog-bytes": 100 } }) => umqConnected(options, new PausableWorld());

const bytes = (length) => new Uint8Array(length).buffer;

async function streamed(client, socket, count) {
  const asked = client.call("file", { streamed: true });
  const number = client.session._machine._lastCall;
  socket.says(`A${count.toString(36).toUpperCase()}:R${number}:file`);
  return (await asked).stream;
}

test("a stream that nobody takes pauses the socket, and taking it resumes it (UM-19)", async () => {
  const { client, socket } = await connected();
  const stream = await streamed(client, socket, 10);
  for (let number = 0; number < 10; number++) socket.says(bytes(13));
  assert.deepEqual([client.session.paused, client._backlog.bytes], [true, 26]);
  const came = [];
  for await (const piece of stream) {
    came.push(piece.length);
    assert.ok(client._backlog.bytes <= 26);
  }
  assert.deepEqual([came.length, client.session.paused, client._backlog.bytes], [10, false, 0]);
});

test("a paused socket is no reason for a fault: time begins anew when it is read", async () => {
  const { client, world, socket } = await connected();
  const stream = await streamed(client, socket, 3);
  socket.says(bytes(30));
  assert.equal(client.session.paused, true);
  await world.pass(1000);
  assert.equal((await stream.next()).value.length, 30);
  assert.equal(client.session.paused, false);
  await world.pass(59);
  assert.equal(client.state, "open");
  const lost = assert.rejects(stream.next(), ConnectionClosed);
  await world.pass(2);
  await lost;
});

test("who waits for an answer is read further, and told when that is too much", async () => {
  const { client, world, socket } = await connected();
  const stream = await streamed(client, socket, 20);
  socket.says(bytes(30));
  assert.equal(client.session.paused, true);
  const call = client.call("x");
  assert.equal(client.session.paused, false);
  socket.says(bytes(30), bytes(30)); // more than three quarters
  assert.equal(client.session.paused, true);
  for (let number = 3; number < 20; number++) socket.says(bytes(30));
  socket.says("R2:behind all of it");
  await world.pass(9);
  assert.equal((await stream.next()).value.length, 30); // something was taken: the time begins anew
  await world.pass(9);
  assert.equal(client._backlog.bytes, 90);
  await world.pass(2);
  await assert.rejects(stream.next(), LimitExceeded);
  assert.equal((await call).payload, "behind all of it");
  assert.deepEqual([client.session.paused, client._backlog.bytes], [false, 0]);
});

test("updates pause the socket by their bytes and by their number, also those that a hook works on", async () => {
  const { client, socket } = await connected({ limits: {} });
  const subscribing = client.subscribe((id) => id);
  socket.says("R1:true");
  const updates = await subscribing;
  for (let number = 0; number < 3000; number++) socket.says(`T1:${number}`);
  assert.deepEqual([client.session.paused, client._backlog.messages], [true, 2501]);
  for (let number = 0; number < 3000; number++)
    assert.equal((await updates.next()).value.payload, String(number));
  assert.deepEqual([client.session.paused, client._backlog.messages, client._backlog.bytes], [false, 0, 0]);
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const hooking = client.subscribe((id) => id, () => released);
  socket.says("R2:true");
  await hooking;
  for (let number = 0; number < 3000; number++) socket.says(`T2:${number}`);
  assert.equal(client.session.paused, true);
  release();
  await turn();
  assert.deepEqual([client.session.paused, client._backlog.messages, client._backlog.bytes], [false, 0, 0]);
});

test("who leaves a loop, or is lost, has no part in the bound any more", async () => {
  const { client, world, socket } = await connected();
  const stream = await streamed(client, socket, 3);
  socket.says(bytes(30));
  await stream.return();
  assert.deepEqual([client.session.paused, client._backlog.bytes], [false, 0]);
  const subscribing = client.subscribe((id) => id);
  socket.says("R2:true", `T1:${"x".repeat(10)}`);
  assert.equal(client._backlog.bytes, 20);
  await (await subscribing).return();
  assert.equal(client._backlog.bytes, 0);
  const another = client.subscribe((id) => id);
  socket.says("R3:true", "T2:x", "T2:y");
  (await another).unsubscribe();
  assert.equal(client._backlog.bytes, 0);
  assert.equal((await (await another).next()).value.payload, "x"); // it can be taken all the same
  assert.equal(client._backlog.bytes, 0);
  socket.says(bytes(1), bytes(1));
  const lost = await streamed(client, socket, 3);
  socket.says(bytes(30));
  assert.equal(client.session.paused, true);
  socket.breaks();
  assert.equal(client._backlog.bytes, 0);
  assert.equal((await lost.next()).value.length, 30);
  await assert.rejects(lost.next(), ConnectionClosed);
  await world.pass(1);
  world.socket.says("W1:");
  await turn();
  assert.deepEqual([client.state, client.session.paused], ["open", false]);
});

test("updates that wait are counted once over all sessions", async () => {
  const { client, world, socket } = await connected({ limits: { "backlog-bytes": 100, "retry-first": 1 } });
  const subscribing = client.subscribe((id) => id);
  socket.says("R1:true", `T1:${"x".repeat(20)}`);
  const updates = await subscribing;
  assert.equal(client.session.paused, true);
  socket.breaks();
  await world.pass(1);
  client._backlog.count(0); // something changes, while the session is made
  world.socket.says("W1:");
  await turn();
  world.socket.says("R1:true");
  await turn();
  assert.deepEqual([client._backlog.bytes, client.session.paused], [40, true]); // after the answer
  await updates.next();
  assert.equal(client.session.paused, false);
});

test("a client that is closed reads on to the peer's Close", async () => {
  const { client, socket } = await connected();
  await streamed(client, socket, 3);
  socket.says(bytes(30));
  assert.equal(client.session.paused, true);
  await client.close();
  assert.deepEqual([socket.held, socket.closedWith], [null, 1000]);
});

test("sABC: parts of a message may be late while the socket is paused (SA-19)", async () => {
  const world = new PausableWorld();
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const heard = [];
  const connecting = SabcClient.connect("ws://server/", {
    world,
    clientId: "me",
    limits: { "backlog-bytes": 100 },
    onMessage: ({ text }) => (heard.push(text.length), released),
  });
  await turn();
  const { socket } = world;
  socket.says("CONNECTED\r\nsession-id::s\r\n\r\n\0");
  const client = await connecting;
  const message = (lines, body) => `MESSAGE\r\nsession-id::s\r\nsend-only::yes\r\n${lines}\r\n\r\n${body}`;
  socket.says(message("msg-id::1\r\nmsg-more::yes", "12345"));
  socket.says(`${message("msg-id::2", "x".repeat(30))}\r\n\r\n\0`);
  assert.equal(client.session.paused, true);
  await world.pass(1000);
  release();
  await turn();
  assert.equal(client.session.paused, false);
  socket.says(`${message("msg-id::1", "6789")}\r\n\r\n\0`);
  assert.deepEqual(heard, [30, 9]);
});
