/** UmqClient over a socket that is not there: every promise settles, and it comes back. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { UmqClient } from "../src/index.js";
import {
  AttachmentLost,
  CallFailed,
  ConnectionClosed,
  LimitExceeded,
  NoSuchMethod,
  NotJson,
  Refused,
  RemoteError,
  Reply,
  SessionRefused,
  Stored,
  TimedOut,
  withRequest,
} from "../src/umq/index.js";
import { FakeWorld, connected, turn } from "./fakes.js";

const TICKS = (id) => `["ticks","${id}"]`;

test("the log-in goes with H (UM-06)", async () => {
  const { said, client } = await connected({ login: { user: "me", password: "secret" } });
  assert.deepEqual(said, ["H1:me:secret"]);
  assert.equal(client.session.welcome.payload, "welcome");
  assert.deepEqual((await connected({ hello: async () => "asked", helloAttachments: [Uint8Array.of(1)] })).said, [
    "A1:H1:asked",
    Uint8Array.of(1),
  ]);
});

test("a call is answered with text and attachments (UM-09, UM-10)", async () => {
  const { client, socket } = await connected();
  const answer = client.call("How are you?", { attachments: [Uint8Array.of(1), new Uint8Array([2, 3]).buffer] });
  assert.deepEqual(socket.take(), ["A2:C1:How are you?", Uint8Array.of(1), Uint8Array.of(2, 3)]);
  socket.says("A2:R1:Fine", Uint8Array.of(9).buffer, "-:gone");
  const { payload, attachments } = await answer;
  assert.equal(payload, "Fine");
  assert.deepEqual(attachments[0], Uint8Array.of(9));
  assert.ok(attachments[1] instanceof AttachmentLost);
  assert.equal(attachments[1].message, "gone");
});

test("attachments may come later, from promises and Blobs (UM-04)", async () => {
  const { client, socket } = await connected();
  let resolve;
  const late = new Promise((fulfil) => (resolve = fulfil));
  const answer = client.call("x", { attachments: [late, new Blob(["blob"]), Promise.reject(new Error("no"))] });
  assert.deepEqual(socket.take(), ["A3:C1:x"]);
  await turn();
  assert.deepEqual(socket.take(), []);
  resolve(Uint8Array.of(7));
  await turn();
  assert.deepEqual(socket.take(), [
    Uint8Array.of(7),
    new TextEncoder().encode("blob"),
    "-:the attachment is not available",
  ]);
  socket.says("R1:ok");
  await answer;
  const broken = [Promise.reject(new Error("no")), "text"]; // nobody else hears of the first
  await assert.rejects(client.call("x", { attachments: broken }), TypeError);
});

test("attachments that are no array are not left out", async () => {
  const onCall = () => new Reply("x", /** @type {any} */ (new Blob(["a"])));
  const { client, socket, world } = await connected({ onCall });
  const topic = client.session.openTopic("1");
  socket.take();
  assert.throws(() => client.registerCallback(/** @type {any} */ ("f")), TypeError);
  await assert.rejects(client.subscribe(() => "x", /** @type {any} */ ("f")), TypeError);
  for (const attachments of [new Blob(["a"]), new ArrayBuffer(1), new Uint8Array(0), 7]) {
    await assert.rejects(client.call("x", { attachments: /** @type {any} */ (attachments) }), TypeError);
    assert.throws(() => topic.publish("x", /** @type {any} */ (attachments)), TypeError);
    assert.throws(() => client.setAttribute("a", "x", /** @type {any} */ (attachments)), TypeError);
  }
  socket.take();
  socket.says("C1:x");
  await turn();
  assert.deepEqual([socket.take(), world.reported], [["E1:internal error"], ["attachments are an array"]]);
});

test("errors are told apart", async () => {
  const { client, socket } = await connected();
  const failing = async (answer, kind, check) => {
    const called = client.callMethod("greet", ["world"]);
    const [sent] = socket.take();
    socket.says(answer.replace("#", /^C(\w+)/.exec(sent)[1]));
    await assert.rejects(called, (error) => {
      assert.equal(error.constructor, kind);
      assert.equal(error.name, kind.name);
      check?.(error);
      return true;
    });
  };
  await failing("E#:6 not an RPC server", CallFailed, ({ code, message }) => {
    assert.deepEqual([code, message], [6, "not an RPC server"]);
  });
  await failing("E#:", CallFailed, ({ code }) => assert.equal(code, null));
  await failing('E#:{"type":"Sold","message":"out"}', RemoteError, ({ type, message }) => {
    assert.deepEqual([type, message], ["Sold", "out"]);
  });
  await failing("R#:no json", NotJson);
  const stored = client.remote.event({ clicked: true });
  assert.deepEqual(socket.take(), ['C5:["event",{"clicked":true}]']);
  socket.says('R5:{"stored": true}');
  assert.deepEqual(await stored, new Stored(true));
});

test("a call after the end is rejected, and so is one that was on its way", async () => {
  const { client, socket } = await connected({ reconnect: false });
  const pending = client.call("pending");
  socket.breaks();
  await assert.rejects(pending, ConnectionClosed);
  await assert.rejects(client.call("later"), ConnectionClosed);
  await assert.rejects(client.subscribe(TICKS), ConnectionClosed);
  assert.ok((await client.closed) instanceof ConnectionClosed);
  const { client: other } = await connected();
  await other.close();
  await assert.rejects(other.call("after close"), ConnectionClosed);
  assert.equal(await other.closed, null);
});

test("a call has a deadline and can be given up", async () => {
  const { client, world, socket } = await connected();
  const slow = client.call("slow", { timeout: 5 });
  const usual = client.call("usual");
  const abort = new AbortController();
  const dropped = client.call("dropped", { signal: abort.signal });
  abort.abort(new Error("never mind"));
  await assert.rejects(dropped, /never mind/);
  await assert.rejects(client.call("x", { signal: abort.signal }), /never mind/);
  const rejected = assert.rejects(slow, TimedOut);
  await world.pass(5);
  await rejected;
  socket.says("R1:too late", "R3:too late", "R2:in time");
  assert.equal((await usual).payload, "in time");
});

test("what is not sent is not pending: limits and what is no text", async () => {
  const { client, socket } = await connected({ limits: { "payload-characters": 9, "own-calls": 1 } });
  await assert.rejects(client.call("1234567890"), LimitExceeded);
  await assert.rejects(client.call("\ud800"), TypeError);
  const first = client.call("1");
  await assert.rejects(client.call("2"), LimitExceeded);
  socket.says("R1:");
  await first;
  socket.bufferedAmount = 1 << 30;
  await assert.rejects(client.call("3"), LimitExceeded);
  assert.deepEqual(socket.take(), ["C1:1"]);
  assert.throws(() => new UmqClient("ws://x/", { limits: { nonsense: 1 } }), RangeError);
});

test("updates come to a hook or a loop, in order, until the topic is closed (UM-12, UM-13)", async () => {
  const { client, socket } = await connected();
  const subscribing = client.subscribe(TICKS);
  assert.deepEqual(socket.take(), ['C1:["ticks","1"]']);
  socket.says("T1:early", "R1:true", "A1:T1:picture", "T1:after", Uint8Array.of(1).buffer, "D1:");
  const seen = [];
  for await (const { payload, attachments } of await subscribing) seen.push([payload, attachments.length]);
  assert.deepEqual(seen, [["early", 0], ["picture", 1], ["after", 0]]);
  assert.equal(await (await subscribing).ended, "closed");
  const heard = [];
  const other = client.subscribe(TICKS, ({ payload }) => heard.push(payload));
  socket.says("R2:true", "T2:a", "T2:b");
  (await other).unsubscribe();
  socket.says("T2:late", "D2:");
  assert.deepEqual(heard, ["a", "b"]);
  assert.equal(await (await other).ended, "unsubscribed");
  assert.ok(socket.take().includes("U2:"));
});

test("leaving a loop unsubscribes; a subscription that is refused is rejected (UM-14)", async () => {
  const { client, socket } = await connected();
  const subscribing = client.subscribe(TICKS);
  socket.says("R1:true", "T1:one", "T1:two");
  for await (const { payload } of await subscribing) {
    assert.equal(payload, "one");
    break;
  }
  assert.ok(socket.take().includes("U1:"));
  const refused = client.subscribe(TICKS);
  socket.says("E2:6 no");
  await assert.rejects(refused, CallFailed);
  const stored = client.subscribe(TICKS);
  socket.says('R3:{"stored":true}');
  await assert.rejects(stored, NoSuchMethod);
  assert.deepEqual(socket.take().filter((one) => one.startsWith("U")), ["U2:", "U3:"]);
});

test("subscriptions, attributes and callbacks come back with the next session", async () => {
  const states = [];
  let id = null;
  const { client, world, socket } = await connected({
    onState: (state, error) => states.push([state, error?.name ?? null]),
    onOpen: (session) => id && session.call(`my callback is ${id}`),
  });
  id = client.registerCallback(() => "called");
  const heard = [];
  const subscribing = client.subscribe(TICKS, ({ payload }) => heard.push(payload));
  client.setAttribute("mood", "good");
  socket.take();
  socket.says("R1:true", "T1:one");
  await subscribing;
  const unsettled = client.call("unsettled");
  const safe = client.call("safe", { safe: true });
  socket.take();
  socket.breaks();
  await assert.rejects(unsettled, ConnectionClosed);
  assert.equal(client.state, "down");
  const waiting = client.call("waiting");
  world.unreachable = 1;
  await world.pass(1);
  assert.equal(world.sockets.length, 1);
  await world.pass(2); // twice as long
  assert.equal(world.sockets.length, 2);
  const next = world.socket;
  assert.deepEqual(next.take(), ["H1:"]);
  next.says("W1:");
  await turn();
  assert.deepEqual(next.take(), [
    "S:mood=good",
    'C1:["ticks","1"]',
    `C2:my callback is ${id}`,
    "C3:safe",
    "C4:waiting",
  ]);
  next.says("R1:true", "T1:two", "B7:1:hello", "R3:", "R4:done");
  assert.equal((await waiting).payload, "done");
  await safe;
  assert.deepEqual(next.take(), ["R7:called"]);
  assert.deepEqual(heard, ["one", "two"]);
  assert.deepEqual(states, [
    ["connecting", null],
    ["open", null],
    ["down", "ConnectionClosed"],
    ["connecting", "ConnectionClosed"],
    ["down", "Error"],
    ["connecting", "Error"],
    ["open", null],
  ]);
});

test("waits grow, a steady session begins them anew, and a refusal waits longer", async () => {
  const { client, world, socket } = await connected();
  const attempts = () => world.asked.length;
  world.unreachable = 3;
  socket.breaks();
  for (const seconds of [1, 2, 4]) {
    const before = attempts();
    await world.pass(seconds - 0.01);
    assert.equal(attempts(), before);
    await world.pass(0.01);
    assert.equal(attempts(), before + 1);
  }
  await world.pass(8);
  world.socket.says("W1:");
  await world.pass(10);
  assert.equal(client.state, "open");
  world.socket.breaks();
  await world.pass(1);
  world.socket.says("F0:1 rejected");
  await turn();
  assert.ok(client.error instanceof SessionRefused);
  assert.equal(client.error.code, 1);
  const before = attempts();
  await world.pass(1.9);
  assert.equal(attempts(), before);
  await world.pass(0.2);
  assert.equal(attempts(), before + 1);
  await client.close();
});

test("who is refused at the beginning is told, and the client is closed", async () => {
  const world = new FakeWorld();
  const connecting = UmqClient.connect("ws://server/", { world });
  await turn();
  world.socket.says("F0:1 rejected");
  await assert.rejects(connecting, (error) => error instanceof SessionRefused && error.code === 1);
  world.unreachable = 1;
  await assert.rejects(UmqClient.connect("ws://server/", { world }), /not to be reached/);
  await world.pass(1000);
  assert.equal(world.asked.length, 2);
  const silent = UmqClient.connect("ws://server/", { world });
  const rejected = assert.rejects(silent, ConnectionClosed).catch(() => assert.rejects(silent, /no W in time/));
  await world.pass(10);
  await rejected;
  assert.equal(world.socket.closedWith, 1000);
});

test("start() tries until a session stands; close() ends that too", async () => {
  const world = new FakeWorld();
  world.unreachable = 2;
  const client = new UmqClient("ws://server/", { world });
  const started = client.start();
  const waiting = client.call("early", { timeout: 100 });
  await world.pass(10);
  world.socket.says("W1:");
  await started;
  world.socket.says("R1:yes");
  assert.equal((await waiting).payload, "yes");
  world.socket.breaks();
  await turn();
  const never = client.call("never");
  await client.close();
  await assert.rejects(never, ConnectionClosed);
  await world.pass(1000);
  assert.equal(world.sockets.length, 1);
});

test("a call that waits for a session has its deadline too", async () => {
  const { client, world, socket } = await connected({ limits: { "waiting-verbs": 1, "retry-first": 50 } });
  socket.breaks();
  await turn();
  const waiting = client.call("x", { timeout: 3 });
  await assert.rejects(client.call("y"), LimitExceeded);
  const rejected = assert.rejects(waiting, TimedOut);
  await world.pass(3);
  await rejected;
});

test("the peer calls methods, callbacks and the hook (UM-09, UM-11, UM-17)", async () => {
  const topics = [];
  const { client, socket, world } = await connected({
    limits: { topics: 1 },
    methods: {
      add: (a, b) => a + b,
      work: withRequest(({ session }, id) => session.callback(id, "x")),
      later: async () => new Reply('"r"', [Uint8Array.of(5)]),
      sold: () => {
        throw new RemoteError("Sold", "out");
      },
      ticks: withRequest(({ session }, id) => {
        topics.push(session.openTopic(id));
        return true;
      }),
    },
    onCall: ({ payload, attachments }) => {
      if (payload === "no") throw new Refused("not today", 8);
      return `${payload} with ${attachments.length}`;
    },
  });
  const answered = async (...messages) => {
    socket.says(...messages);
    await turn();
    return socket.take();
  };
  assert.deepEqual(await answered('C01:["add",1,2]'), ["R01:3"]);
  assert.deepEqual(await answered('C2:["later"]'), ['A1:R2:"r"', Uint8Array.of(5)]);
  assert.deepEqual(await answered('C3:["sold"]'), ['E3:{"type":"Sold","message":"out"}']);
  assert.deepEqual(await answered("C4:no"), ["E4:8 not today"]);
  assert.deepEqual(await answered("A1:C5:hook", Uint8Array.of(1).buffer), ["R5:hook with 1"]);
  assert.deepEqual(await answered('C6:["toString"]'), ['R6:["toString"] with 0']);
  const id = client.registerCallback(({ payload, callback }) => `${callback}: ${payload}`);
  assert.deepEqual(await answered(`B7:${id}:work`), [`R7:${id}: work`]);
  client.unregisterCallback(id);
  assert.deepEqual(await answered(`B8:${id}:work`), ["E8:2 callback not found"]);
  // A wrong topic id is the peer's fault, and no error of the method.
  for (const id of ["1", '"x"', '""']) assert.match((await answered(`C9:["ticks",${id}]`))[0], /^E9:3 .* no topic id$/);
  for (const id of ["1", '"x y"', "null"])
    assert.match((await answered(`C9:["work",${id}]`))[0], /^E9:2 .* no callback id$/);
  assert.deepEqual(await answered('C9:["ticks","A"]'), ["R9:true"]);
  assert.deepEqual(await answered('C9:["ticks","A"]'), ["E9:3 the topic id A is in use"]);
  assert.deepEqual(await answered('C9:["ticks","B"]'), ["E9:8 1 topics are open already"]);
  assert.deepEqual(world.reported, []);
  topics[0].publish("tick", [Uint8Array.of(1)]);
  socket.bufferedAmount = 1 << 30;
  assert.throws(() => topics[0].publish("unread"), LimitExceeded);
  socket.bufferedAmount = 0;
  assert.deepEqual(socket.take(), ["A1:TA:tick", Uint8Array.of(1)]);
  assert.deepEqual(await answered("UA:"), ["DA:"]);
  assert.equal(await topics[0].ended, "unsubscribed");
  assert.throws(() => topics[0].publish("late"), ConnectionClosed);
});

test("without methods and hook a call is refused; other errors stay ours (UM-09)", async () => {
  const { socket } = await connected();
  socket.says("C1:x");
  await turn();
  assert.deepEqual(socket.take(), ["E1:6 not an RPC server"]);
  const broken = await connected({ onCall: () => { throw new Error("a secret of ours"); } });
  broken.socket.says("C1:x");
  await turn();
  assert.deepEqual(broken.socket.take(), ["E1:internal error"]);
  assert.deepEqual(broken.world.reported, ["a secret of ours"]);
});

test("attributes of the peer are kept and told (UM-15, UM-16)", async () => {
  const told = [];
  const { client, socket } = await connected({ onAttribute: (name, one) => told.push([name, one?.value]) });
  socket.says("S:a= 1 ", "A1:S:b=2", Uint8Array.of(1).buffer, "X:a");
  assert.deepEqual(told, [["a", " 1 "], ["b", "2"], ["a", undefined]]);
  assert.deepEqual([...client.attributes.keys()], ["b"]);
  client.setAttribute("mine", "x=y", [Uint8Array.of(1)]);
  client.unsetAttribute("mine");
  assert.deepEqual(socket.take(), ["A1:S:mine=x=y", Uint8Array.of(1), "X:mine"]);
  const refused = () => {
    assert.throws(() => client.setAttribute("a=b", "c"), TypeError);
    for (const wrong of [3, null, undefined])
      assert.throws(() => client.setAttribute("a", /** @type {any} */ (wrong)), TypeError);
    assert.throws(() => client.setAttribute("a", "\ud83c"), TypeError);
    assert.throws(() => client.setAttribute("a", "x".repeat(2 << 20)), LimitExceeded);
    assert.throws(() => client.setAttribute("a", "b", Array(33).fill(Uint8Array.of(1))), LimitExceeded);
  };
  refused();
  socket.breaks();
  await turn();
  refused(); // also while no session stands: each one to come would be spoiled
});

test("a fault of the peer is answered with F and ends the session (UM-18)", async () => {
  const { client, socket } = await connected({ reconnect: false });
  const pending = client.call("x");
  socket.take();
  socket.says("nonsense");
  assert.match(socket.take()[0], /^F0:3 /);
  assert.equal(socket.closedWith, 1000);
  await assert.rejects(pending, ConnectionClosed);
  assert.equal((await client.closed).name, "ProtocolFault");
});

test("close() waits for answers, within its time", async () => {
  const { client, socket } = await connected();
  const answer = client.call("x");
  const closing = client.close();
  await turn();
  assert.equal(socket.closedWith, null);
  socket.says("R1:last");
  assert.equal((await answer).payload, "last");
  await closing;
  const other = await connected();
  const never = assert.rejects(other.client.call("y"), ConnectionClosed);
  const ending = other.client.close();
  await other.world.pass(30);
  await never;
  await ending;
  const third = await connected();
  const lost = assert.rejects(third.client.call("z"), ConnectionClosed);
  const closed = third.client.close();
  await turn();
  third.socket.breaks(); // nobody waits for the rest of the time
  await lost;
  await closed;
});

test("updates that nobody takes end the subscription", async () => {
  const { client, socket } = await connected();
  const subscribing = client.subscribe(TICKS);
  socket.says("R1:true");
  const subscription = await subscribing;
  for (let number = 0; number <= 10_000; number++) socket.says(`T1:${number}`);
  assert.equal(await subscription.ended, "slow");
  assert.ok(socket.take().includes("U1:"));
  assert.equal((await subscription.next()).value.payload, "0");
});

test("what no peer accepts is not sent, and promises say why (RD-03)", async () => {
  const seen = [];
  const methods = { cut: () => "🎉".slice(0, 1), refuse: () => Promise.reject(new Refused("🎉".slice(1), 9)) };
  const { client, socket } = await connected({ methods, onHookError: (error) => seen.push(error) });
  const half = "🎉".slice(0, 1);
  let deep = 1;
  for (let level = 0; level < 64; level++) deep = [deep];
  const wide = Array.from({ length: 10_001 }, () => []);
  for (const value of [half, "Party " + half, { [half]: 1 }, `\\${half}`, deep, wide, 1n])
    await assert.rejects(client.callMethod("visited", [value]), TypeError);
  await assert.rejects(client.callMethod(/** @type {any} */ (1)), TypeError);
  await assert.rejects(client.call(half), TypeError);
  await assert.rejects(client.callback("1", half), TypeError);
  await assert.rejects(client.subscribe(() => half), TypeError);
  assert.throws(() => client.setAttribute("a", half), TypeError);
  assert.deepEqual(socket.take().filter((text) => !text.startsWith("U")), []);
  void client.callMethod("visited", ["🎉", "\\ud83c", "[".repeat(100), deep[0]]).catch(() => {});
  assert.equal(socket.take().length, 1);
  socket.says('C1:["cut"]', 'C2:["refuse"]');
  await turn();
  assert.deepEqual(socket.take(), ["E1:internal error", "E2:9 \ufffd"]);
  const empty = client.callMethod("x");
  const [sent] = socket.take();
  socket.says(`R${/^C(\w+)/.exec(sent)[1]}:`);
  assert.equal(await empty, null);
});
