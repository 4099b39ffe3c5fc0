/** sABC's codec and machine do what the Python ones did when they were recorded. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ProtocolFault } from "../src/errors.js";
import { Machine } from "../src/sabc/machine.js";
import { readFrame } from "../src/sabc/wire.js";
import { jsonOf, bytes, recording } from "./recorded.js";
import { replayOf } from "./sabc-replay.js";

test("every recorded message reads as the Python codec reads it (SA-01 … SA-04, SA-21)", () => {
  const { bounds, cases } = recording("sabc-frames");
  for (const [message, expected] of cases) {
    const found = readFrame(bytes(message), bounds);
    const told =
      found instanceof ProtocolFault
        ? { fault: found.reason }
        : {
            command: found.command,
            headers: Object.fromEntries(found.headers),
            body: jsonOf(found.body),
            final: found.final,
          };
    assert.deepEqual(told, expected, JSON.stringify(message));
  }
});

for (const [name, session] of Object.entries(recording("sabc-sessions")))
  test(`a recorded session: ${name}`, () => replayOf(session, name));

function granted(limits) {
  const machine = new Machine({ limits });
  machine.connect("me");
  machine.receive("CONNECTED\r\nsession-id::s\r\n\r\n\0", 0);
  machine.outputs();
  return machine;
}

test("whatever the size of its parts, what is sent is read as it was (SA-18, SA-21)", () => {
  const body = new TextEncoder().encode("a\0\0\r\n\0b\r\n\0\0ü\r\n\r\nend");
  for (let size = 1; size <= body.length; size++) {
    const machine = granted({ "part-bytes": size });
    machine.request(body, null, 1);
    const parts = machine.outputs().map((one) => readFrame(bytes(jsonOf(one)), machine.bounds));
    assert.ok(parts.every((part) => !(part instanceof ProtocolFault)));
    assert.equal(jsonOf(Buffer.concat(parts.map((part) => part.body))), jsonOf(body), `parts of ${size}`);
    assert.deepEqual(parts.map((part) => part.final), parts.map((_, at) => at === parts.length - 1));
  }
});

test("a body with an end mark is refused, in one piece and in several (SA-21)", () => {
  for (const bad of ["\0", "\r\n\0x", "x\r\n\r\n\0", "x\r\n\r\n\0y"]) {
    assert.throws(() => granted().request(bytes(bad), null, 1), TypeError);
    for (let at = 0; at <= bad.length; at++) {
      const outgoing = granted().openRequest(null, 1);
      assert.throws(() => {
        outgoing.write(bytes(bad.slice(0, at)));
        outgoing.write(bytes(bad.slice(at)));
      }, TypeError, JSON.stringify([bad, at]));
    }
  }
});

test("headers that would be read as others are refused (SA-03)", () => {
  for (const [key, value] of [["a::b", "c"], ["a", "b::c"], ["a\r", "b"], ["a", "b\nc"], ["a", "\0"], ["", "b"], ["a:", "b"], ["a", "\ud800"]])
    assert.throws(() => granted().request(bytes("x"), null, 1, { [key]: value }), TypeError);
  assert.throws(() => granted().request(bytes("x"), null, 1, { "msg-id": "1" }), TypeError);
});
