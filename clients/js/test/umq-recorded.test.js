/** UMQ's codec and machine do what the Python ones did when they were recorded. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ProtocolFault } from "../src/errors.js";
import { Machine } from "../src/umq/machine.js";
import { COMMANDS, decode, encode } from "../src/umq/wire.js";
import { recording } from "./recorded.js";
import { replayOf } from "./umq-replay.js";

test("every recorded text reads as the Python codec reads it (UM-02, UM-03, UM-05, UM-18)", () => {
  const { cases, limits } = recording("umq-codec");
  for (const [text, expected] of cases) {
    const found = decode(text, limits);
    const told =
      found instanceof ProtocolFault
        ? { fault: found.reason, code: found.code }
        : { command: found.command, id: found.id, payload: found.payload, A: found.attachments };
    if ("letter" in expected) {
      const { letter, ...rest } = expected;
      assert.deepEqual(told, { command: COMMANDS[letter], ...rest }, JSON.stringify(text));
      const written = encode(letter, found.id, found.payload, found.attachments);
      assert.deepEqual(decode(written, limits), found);
    } else {
      assert.deepEqual(told, expected, JSON.stringify(text));
    }
  }
});

for (const [name, session] of Object.entries(recording("umq-sessions")))
  test(`a recorded session: ${name}`, () => replayOf(session, name));

test("attachments may stand at any place between the texts (UM-04)", () => {
  const texts = ["A1:C1:first", "C2:second", "A2:C3:third", "C4:fourth"];
  const bodies = [1, 2, 3].map((byte) => Uint8Array.of(byte));
  const orders = (left, right, before) => {
    // A body may come only when it was announced.
    const announced = before.reduce((sum, one) => sum + (/^A(\d)/.exec(one)?.[1] ?? 0) * 1, 0);
    const filled = before.filter((one) => typeof one !== "string").length;
    if (!left.length && !right.length) return [before];
    const next = left.length ? orders(left.slice(1), right, [...before, left[0]]) : [];
    const fill = right.length && filled < announced ? orders(left, right.slice(1), [...before, right[0]]) : [];
    return [...next, ...fill];
  };
  const all = orders(texts, bodies, []);
  assert.equal(all.length, 10);
  for (const order of all) {
    const machine = new Machine();
    machine.hello();
    machine.receive("W1:", 0);
    const calls = order.flatMap((one) => machine.receive(one, 0));
    const found = calls.map((call) => [call.payload, ...call.attachments.map(([byte]) => byte)]);
    const expected = [["first", 1], ["fourth"], ["second"], ["third", 2, 3]];
    assert.deepEqual(found.sort(), expected, JSON.stringify(order));
  }
});
