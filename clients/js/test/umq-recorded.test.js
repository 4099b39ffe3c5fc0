/** UMQ's codec and machine do what the Python ones did when they were recorded. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ProtocolFault } from "../src/errors.js";
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
