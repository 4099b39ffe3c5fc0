/** Large attachments go and come piece by piece; memory is bounded in both directions (UM-19). */

import assert from "node:assert/strict";
import { test } from "node:test";

import { AttachmentLost, ConnectionClosed, LimitExceeded, TimedOut, pieces } from "../src/umq/index.js";
import { connected, turn } from "./fakes.js";

const bytes = (...values) => Uint8Array.from(values);
const binary = (...values) => bytes(...values).buffer;

test("an attachment is made when its turn has come, and not before (UM-04)", async () => {
  const { client, socket } = await connected();
  const made = [];
  const piece = (number) => async () => (made.push(number), bytes(number));
  let resolve;
  const promised = new Promise((fulfil) => (resolve = fulfil));
  const answer = client.call("x", { attachments: [piece(1), promised, piece(3), piece(4)] });
  await turn();
  assert.deepEqual(socket.take(), ["A4:C1:x", bytes(1)]);
  assert.deepEqual(made, [1]); // 3 waits for 2
  resolve(bytes(2));
  await turn();
  assert.deepEqual(socket.take(), [bytes(2), bytes(3), bytes(4)]);
  socket.says("R1:ok");
  await answer;
});

test("nothing is made while the peer does not read", async () => {
  const { client, world, socket } = await connected();
  const made = [];
  const attachments = [1, 2].map((number) => () => (made.push(number), bytes(number)));
  socket.bufferedAmount = 2 << 20;
  const answer = client.call("x", { attachments });
  await world.pass(1);
  assert.deepEqual(made, []);
  socket.bufferedAmount = 0;
  await world.pass(0.1);
  assert.deepEqual(made, [1, 2]);
  socket.says("R1:ok");
  await answer;
});

test("an attachment that cannot be made is lost, and the next ones are sent", async () => {
  const { client, world, socket } = await connected({ limits: { "attachment-bytes": 3 } });
  const failing = () => {
    throw new Error("no such file");
  };
  const attachments = [failing, () => bytes(2), async () => 3, () => bytes(1, 2, 3, 4)];
  void client.call("x", { attachments }).catch(() => {});
  await turn();
  assert.deepEqual(socket.take(), [
    "A4:C1:x",
    "-:the attachment is not available",
    bytes(2),
    "-:the attachment is not available",
    "-:the attachment is too large",
  ]);
  assert.deepEqual(world.reported, [
    "no such file",
    "an attachment is bytes, a Blob, or a promise or function for one of these",
    "an attachment is above attachment-bytes",
  ]);
});

test("nothing is made for a session that has ended", async () => {
  const { client, world, socket } = await connected({ reconnect: false });
  const made = [];
  socket.bufferedAmount = 2 << 20;
  const answer = client.call("x", { attachments: [() => made.push(1)] });
  socket.breaks();
  await assert.rejects(answer, ConnectionClosed);
  await world.pass(1);
  assert.deepEqual(made, []);
});

test("a Blob becomes pieces that are read one by one", async () => {
  const blob = new Blob([bytes(1, 2, 3, 4, 5)]);
  const made = await Promise.all(pieces(blob, 2).map((piece) => piece()));
  assert.deepEqual(made, [bytes(1, 2), bytes(3, 4), bytes(5)]);
  assert.deepEqual(pieces(new Blob([])), []);
  assert.equal(pieces({ size: 9 << 20 }).length, 3); // 4 MiB each
  assert.equal(pieces({ size: 512 << 20 }).length, 32); // as many as one message may have
  assert.throws(() => pieces({ size: (512 << 20) + 1 }), RangeError); // each would be too large to be sent
  assert.throws(() => pieces(blob, 0), RangeError);
});

test("a streamed answer comes before its attachments", async () => {
  const { client, socket } = await connected();
  const asked = client.call("file", { streamed: true });
  socket.says("A3:R1:three");
  const { payload, attachments, stream } = await asked;
  assert.equal(payload, "three");
  assert.deepEqual(attachments, []);
  assert.equal(stream.count, 3);
  const first = stream.next();
  socket.says(binary(1));
  assert.deepEqual((await first).value, bytes(1));
  socket.says("-:gone", binary(3));
  const rest = [];
  for await (const piece of stream) rest.push(piece);
  assert.ok(rest[0] instanceof AttachmentLost);
  assert.deepEqual(rest[1], bytes(3));
  assert.equal((await stream.next()).done, true);
});

test("an answer without attachments has no stream, and others come whole as ever", async () => {
  const { client, socket } = await connected();
  const [bare, whole] = [client.call("a", { streamed: true }), client.call("b")];
  socket.says("R1:nothing", "A1:R2:one", binary(2));
  assert.equal((await bare).stream, undefined);
  assert.deepEqual((await whole).attachments, [bytes(2)]);
});

test("who leaves the loop gets no more, and later attachments find their messages", async () => {
  const { client, socket } = await connected();
  const asked = client.call("file", { streamed: true });
  socket.says("A3:R1:three", binary(1));
  const { stream } = await asked;
  for await (const piece of stream) {
    assert.deepEqual(piece, bytes(1));
    break;
  }
  const next = client.call("another");
  socket.says("A1:R2:one", binary(2), binary(3), binary(9));
  assert.deepEqual((await next).attachments, [bytes(9)]);
  assert.equal((await stream.next()).done, true);
});

test("what nobody takes is bounded", async () => {
  const { client, socket } = await connected({ limits: { "backlog-bytes": 10 } });
  const asked = client.call("file", { streamed: true });
  socket.says("A4:R1:four", new Uint8Array(6).buffer);
  const { stream } = await asked;
  assert.equal((await stream.next()).value.length, 6); // what was taken does not count
  socket.says(new Uint8Array(6).buffer, new Uint8Array(6).buffer);
  await assert.rejects(stream.next(), LimitExceeded);
  const next = client.call("another", { streamed: true });
  socket.says("A1:R2:one", new Uint8Array(6).buffer, new Uint8Array(8).buffer);
  assert.equal((await (await next).stream.next()).value.length, 8);
});

test("attachments of a streamed answer have their time, too", async () => {
  const { client, world, socket } = await connected({ reconnect: false });
  const asked = client.call("file", { streamed: true, timeout: 5 });
  socket.says("A1:R1:one");
  const { stream } = await asked;
  await world.pass(30); // the call is answered: its time-out is over
  const rejected = assert.rejects(stream.next(), ConnectionClosed);
  await world.pass(31);
  await rejected;
  await assert.rejects(client.call("late", { timeout: 0 }), (error) => !(error instanceof TimedOut));
});
