/** SabcClient over a socket that is not there: every promise settles, and it comes back. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { SabcClient } from "../src/index.js";
import { ConnectionClosed, LimitExceeded, Refused, Reply, SessionRefused, TimedOut } from "../src/sabc/index.js";
import { FakeWorld, turn } from "./fakes.js";

const GRANTED = "CONNECTED\r\nsession-id::s\r\ncolour::red\r\n\r\n\0";

const message = (lines, body = "") =>
  `MESSAGE\r\nsession-id::s\r\n${lines}\r\n\r\n${body}${body ? "\r\n\r\n" : ""}\0`;

async function connected(options = {}) {
  const world = new FakeWorld();
  const connecting = SabcClient.connect("ws://server/", { world, clientId: "me", ...options });
  await turn();
  const said = world.socket.take();
  world.socket.says(GRANTED);
  const client = await connecting;
  return { client, world, said, socket: world.socket };
}

test("a session is asked for and granted (SA-07 … SA-11)", async () => {
  const { client, said, world } = await connected({ passcode: "p", headers: { shape: "round" } });
  assert.deepEqual(said, [
    "CONNECT\r\nclient-id::me\r\nclient-passcode::p\r\nmessage-bytes::1048576\r\nshape::round\r\n\r\n\0",
  ]);
  assert.deepEqual(client.session.headers, { colour: "red" });
  assert.deepEqual(world.asked, ["sabc"]);
});

test("a request is answered, refused, or not in time (SA-16)", async () => {
  const { client, socket, world } = await connected();
  const one = client.request("Hola", { headers: { x: "y" } });
  const two = client.request(Uint8Array.of(0xff, 0xfe));
  assert.deepEqual(socket.take(), [
    message("msg-id::1\r\nx::y", "Hola"),
    new Uint8Array([...Buffer.from("MESSAGE\r\nsession-id::s\r\nmsg-id::2\r\n\r\n"), 0xff, 0xfe, 13, 10, 13, 10, 0]),
  ]);
  socket.says("ERROR\r\nsession-id::s\r\nerror-code::403\r\nref-msg-id::2\r\n\r\nno\r\n\r\n\0");
  socket.says(message("ref-msg-id::1\r\na::b", "Mundo"));
  const answer = await one;
  assert.deepEqual([answer.text, answer.headers, answer.truncated], ["Mundo", { a: "b" }, false]);
  await assert.rejects(two, (error) => error instanceof Refused && error.code === "403" && error.message === "no");
  const cut = client.request("long");
  socket.says(message("ref-msg-id::3\r\ntruncated::yes"));
  await assert.rejects(cut, (error) => error.code === "truncated");
  const late = assert.rejects(client.request("x", { timeout: 2 }), TimedOut);
  await world.pass(2);
  await late;
  const abort = new AbortController();
  const given_up = client.request("x", { signal: abort.signal });
  abort.abort(new Error("never mind"));
  await assert.rejects(given_up, /never mind/);
  await assert.rejects(client.request("x\r\n\r\n\0"), TypeError);
  await assert.rejects(client.request("x", { headers: { "msg-id": "1" } }), TypeError);
  await assert.rejects(client.request("x".repeat(2 << 20)), LimitExceeded);
});

test("a body in pieces is sent as it comes (SA-18)", async () => {
  const { client, socket } = await connected({ limits: { "part-bytes": 4 } });
  async function* pieces() {
    yield "12345";
    await turn();
    yield Uint8Array.of(54, 55, 56);
  }
  const answer = client.request(pieces());
  await turn();
  await turn();
  const sent = socket.take();
  assert.equal(sent[0], "MESSAGE\r\nsession-id::s\r\nmsg-id::1\r\nmsg-more::yes\r\n\r\n1234");
  assert.equal(sent.at(-1), message("msg-id::1", "5678"));
  socket.says(message("ref-msg-id::1"));
  assert.equal((await answer).text, "");
  const broken = client.request(
    (async function* () {
      yield "12345678";
      throw new Error("the source broke");
    })(),
  );
  await assert.rejects(broken, /the source broke/);
  assert.equal(socket.take().at(-1), "MESSAGE\r\nsession-id::s\r\nmsg-id::2\r\n\r\n");
});

test("the server's messages go to hooks, and their results are answers (SA-16, SA-17)", async () => {
  const heard = [];
  const { client, socket, world } = await connected({
    onMessage: ({ text }) => heard.push(text),
    onError: async ({ code, message }) => {
      heard.push([code, message]);
      throw new Error("a hook's own");
    },
    onRequest: async ({ text, headers }) => {
      if (text === "no") throw new Refused("not today", 409);
      if (text === "odd") throw new Refused("not today", "a::b");
      if (text === "broken") throw new Error("a secret");
      return text === "ack" ? undefined : new Reply(text.toUpperCase(), { x: headers.x });
    },
  });
  const answered = async (...messages) => {
    socket.says(...messages);
    await turn();
    return socket.take();
  };
  assert.deepEqual(await answered(message("msg-id::1\r\nx::1", "shout")), [message("ref-msg-id::1\r\nx::1", "SHOUT")]);
  assert.deepEqual(await answered(message("msg-id::2", "ack")), [message("ref-msg-id::2")]);
  const error = (code, id, text) =>
    `ERROR\r\nsession-id::s\r\nerror-code::${code}\r\nref-msg-id::${id}\r\n\r\n${text}\r\n\r\n\0`;
  assert.deepEqual(await answered(message("msg-id::3", "no")), [error(409, 3, "not today")]);
  assert.deepEqual(await answered(message("msg-id::4", "broken")), [error(500, 4, "internal error")]);
  assert.deepEqual(await answered(message("msg-id::6", "odd")), [error(500, 6, "internal error")]);
  assert.deepEqual(world.reported, ["a secret", "'::' must not stand in a header value"]);
  await answered(message("msg-id::5\r\nsend-only::yes", "news"));
  await answered("ERROR\r\nerror-code::400\r\n\r\njust so\r\n\r\n\0");
  assert.deepEqual(heard, ["news", ["400", "just so"]]);
  assert.equal(world.reported.at(-1), "a hook's own");
  await client.sendOnly("note", { headers: { a: "b" } });
  client.sendError(418, "teapot");
  assert.deepEqual(socket.take(), [
    message("msg-id::1\r\nsend-only::yes\r\na::b", "note"),
    "ERROR\r\nsession-id::s\r\nerror-code::418\r\n\r\nteapot\r\n\r\n\0",
  ]);
});

test("whatever ends a session settles its requests, and the next session takes new ones", async () => {
  const { client, socket, world } = await connected();
  const unsettled = client.request("x");
  const safe = client.request("y", { safe: true });
  socket.says("DISCONNECTING\r\nsession-id::s");
  await assert.rejects(unsettled, ConnectionClosed);
  const waiting = client.request("z");
  await world.pass(1);
  world.socket.says(GRANTED);
  await turn();
  assert.deepEqual(world.socket.take().slice(1), [message("msg-id::1", "y"), message("msg-id::2", "z")]);
  world.socket.says(message("ref-msg-id::1"), message("ref-msg-id::2"));
  await Promise.all([safe, waiting]);
  const closing = client.close();
  assert.deepEqual(world.socket.take(), ["DISCONNECT\r\nsession-id::s\r\n\r\n\0"]);
  world.socket.says("DISCONNECTING\r\nsession-id::s\r\n\r\n\0");
  await closing;
  await assert.rejects(client.request("after"), ConnectionClosed);
  await assert.rejects(client.sendOnly("after"), ConnectionClosed);
  assert.throws(() => client.sendError(1, "after"), ConnectionClosed);
});

test("a log-in that fails is told, and the socket is closed (SA-08)", async () => {
  const world = new FakeWorld();
  const connecting = SabcClient.connect("ws://server/", { world, clientId: "me", passcode: "wrong" });
  await turn();
  world.socket.says("ERROR\r\nerror-code::403\r\n\r\nAccess Forbidden\r\n\r\n\0");
  await assert.rejects(connecting, (error) => error instanceof SessionRefused && error.code === "403");
  assert.equal(world.socket.closedWith, 1000);
});

test("a server that does not close after DISCONNECT is left, in the time that the program gives it", async () => {
  for (const [owed, limits, seconds] of [[false, {}, 4], [false, { drain: 2 }, 2], [true, {}, 30], [true, { drain: 2 }, 2]]) {
    const { client, world, socket } = await connected({ limits });
    const asked = owed ? assert.rejects(client.request("x"), ConnectionClosed) : null;
    const closing = client.close();
    await world.pass(seconds - 1);
    assert.equal(socket.closedWith, null);
    await world.pass(1);
    await closing;
    await asked;
    assert.equal(socket.closedWith, 1000);
  }
});
