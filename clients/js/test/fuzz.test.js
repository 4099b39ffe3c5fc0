/**
 * However the recorded sessions arrive, what they tell is the same: cut into other parts (sABC), with
 * attachments as late as the server likes (UMQ). And whatever is spoiled in them, no machine throws.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ProtocolFault } from "../src/errors.js";
import { Machine as Sabc } from "../src/sabc/machine.js";
import { encode, partStart, readFrame } from "../src/sabc/wire.js";
import { Machine as Umq } from "../src/umq/machine.js";
import { bytes, recording, wire } from "./recorded.js";
import { replayOf as replayOfSabc } from "./sabc-replay.js";
import { replayOf as replayOfUmq } from "./umq-replay.js";

const SEED = Number(process.env.SEED ?? 17);

/** Numbers from 0 to 1 that are the same ones each time (mulberry32). */
function chance(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const utf8 = (text) => new TextEncoder().encode(text);
const RELAXED = { lines: 1000, lineBytes: 1 << 20, blockBytes: 1 << 20 };

/** The two parts of a MESSAGE that is split at `at` bytes of its body; null if no sender may do that. */
function inParts(message, at) {
  const whole = bytes(message);
  const frame = readFrame(whole, RELAXED);
  if (frame instanceof ProtocolFault || frame.command !== "MESSAGE") return null;
  if (at > frame.body.length || partStart(frame.body, at) !== at || frame.headers.has("msg-more")) return null;
  if (frame.headers.has("msg-id") === frame.headers.has("ref-msg-id") || !frame.final) return null;
  const lines = [...frame.headers].map(([name, value]) => `${name}::${value}\r\n`).join("");
  const head = `MESSAGE\r\n${lines}`;
  return [encode(`${head}msg-more::yes\r\n`, frame.body.subarray(0, at), false), encode(head, frame.body.subarray(at), true)];
}

const sabcSessions = Object.entries(recording("sabc-sessions"));

test("sABC: every recorded message may come in two parts, split anywhere (SA-18, SA-19)", () => {
  let splits = 0;
  for (const [name, session] of sabcSessions) {
    if ("message-bytes" in session.limits) continue; // where parts weigh more than the whole
    for (const [number, step] of session.steps.entries())
      for (const [place, message] of (step.receives ?? []).entries())
        for (let at = 0; at <= Math.min(64, bytes(message).length); at++) {
          const parts = inParts(message, at);
          if (!parts) continue;
          splits++;
          const receives = [...step.receives];
          receives.splice(place, 1, ...parts);
          const steps = [...session.steps];
          steps[number] = { ...step, receives };
          replayOfSabc({ ...session, steps }, `${name}, step ${number}, message ${place} split at ${at}`);
        }
  }
  assert.ok(splits > 100, `${splits} splits`);
});

test("UMQ: attachments may come as late as the server likes (UM-04)", () => {
  const random = chance(SEED);
  let moved = 0;
  for (const [name, session] of Object.entries(recording("umq-sessions"))) {
    for (const [number, step] of session.steps.entries()) {
      if (step.events?.some(({ type }) => type === "fault" || type === "fatal")) break;
      const { receives = [] } = step;
      const texts = receives.filter((one) => typeof one === "string" && !one.startsWith("-"));
      const bodies = receives.filter((one) => !texts.includes(one));
      if (!bodies.length || texts.length < 2) continue;
      for (let round = 0; round < 20; round++) {
        const order = later(receives, random);
        moved += JSON.stringify(order) !== JSON.stringify(receives);
        const steps = [...session.steps.slice(0, number), { ...step, receives: order }];
        replayOfUmq({ ...session, steps }, `${name}, step ${number}, SEED=${SEED}`, number);
      }
    }
  }
  assert.ok(moved > 20, `${moved} orders`);
});

/** The messages with some attachments later than they came; texts and attachments keep their orders. */
function later(messages, random) {
  const order = [];
  const waiting = [];
  for (const message of messages) {
    if (typeof message === "string" && !message.startsWith("-")) order.push(message);
    else waiting.push(message);
    while (waiting.length && random() < 0.4) order.push(waiting.shift());
  }
  return [...order, ...waiting];
}

/** A message with one byte left out, put in or changed. */
function spoiled(message, at, random) {
  const whole = typeof message === "string" ? utf8(message) : message;
  const byte = [13, 10, 0, 58, 65, 49, 0xfc, 32][Math.floor(random() * 8)];
  const kind = Math.floor(random() * 3);
  const put = kind === 0 ? [] : [byte];
  const bad = Uint8Array.from([...whole.subarray(0, at), ...put, ...whole.subarray(at + (kind === 1 ? 0 : 1))]);
  return typeof message === "string" ? new TextDecoder().decode(bad) : bad;
}

test("whatever is spoiled, no machine throws, and a fault is the last event", () => {
  const random = chance(SEED);
  let tried = 0;
  for (const [name, Machine, begin] of [
    ["sabc", Sabc, (machine) => machine.connect("me")],
    ["umq", Umq, (machine) => machine.hello()],
  ])
    for (const [title, session] of Object.entries(recording(`${name}-sessions`))) {
      const stream = session.steps.flatMap(({ receives = [] }) => receives.map(wire));
      for (const [number, message] of stream.entries()) {
        if (message.length > 2000) continue;
        for (let at = 0; at <= message.length; at += 1 + Math.floor(random() * 8)) {
          const machine = new Machine({ limits: session.limits });
          begin(machine);
          const bad = spoiled(message, at, random);
          const events = [...stream.slice(0, number), bad, ...stream.slice(number + 1)].flatMap((one) => machine.receive(one, 0));
          const ends = events.findIndex(({ type }) => type === "fault" || type === "fatal" || type === "disconnecting");
          const where = `${name}, ${title}, message ${number} at ${at}, SEED=${SEED}`;
          assert.ok(ends < 0 || ends === events.length - 1, where);
          if (ends >= 0) assert.deepEqual([machine.closed, machine.deadline], [true, null], where);
          tried++;
        }
      }
    }
  assert.ok(tried > 1000, `${tried} tries`);
});
