/** UMQ's codec and machine do what the Python ones did when they were recorded. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ProtocolFault } from "../src/errors.js";
import { Slot } from "../src/umq/attachments.js";
import { Machine } from "../src/umq/machine.js";
import { COMMANDS, base36, decode, encode } from "../src/umq/wire.js";
import { attachment, hex, recording, wire } from "./recorded.js";

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

const id = (value) => (typeof value === "number" ? base36(value) : value);

/** How the verbs of the Python machine are said here. */
const VERBS = {
  hello: (machine, [payload, bodies]) => machine.hello(payload, bodies),
  call: (machine, given) => machine.call(...given),
  callback: (machine, [callback, ...rest]) => machine.callback(id(callback), ...rest),
  cancel: (machine, [number]) => machine.cancel(id(number)),
  result: (machine, given) => machine.result(...given),
  error: (machine, given) => machine.error(...given),
  fill: (machine, given) => machine.fill(...given),
  fill_error: (machine, given) => machine.fillError(...given),
  subscribe: (machine) => machine.subscribe(),
  unsubscribe: (machine, [topic]) => machine.unsubscribe(id(topic)),
  open_topic: (machine, [topic]) => machine.openTopic(topic),
  publish: (machine, [topic, ...rest]) => machine.publish(id(topic), ...rest),
  close_topic: (machine, [topic]) => machine.closeTopic(id(topic)),
  set_attribute: (machine, given) => machine.setAttribute(...given),
  unset_attribute: (machine, given) => machine.unsetAttribute(...given),
  unregister_callback: (machine, [callback]) => machine.unregisterCallback(id(callback)),
  fatal: (machine, given) => machine.fatal(...given),
};

class Replay {
  constructor({ limits }) {
    this.machine = new Machine({ limits });
    this.slots = [];
    this.callbacks = 0;
  }

  argument(value) {
    if (Array.isArray(value)) return value.map((one) => this.argument(one));
    if (value === null || typeof value !== "object") return value;
    if ("hex" in value) return wire(value);
    return (this.slots[value.slot] ??= new Slot());
  }

  /** What the machine reports of one step. */
  follow(step) {
    const { machine } = this;
    machine.advanceClock(step.now);
    if ("receives" in step) return step.receives.flatMap((one) => machine.receive(wire(one), step.now));
    if ("advance" in step) return machine.advance(step.now);
    const given = step.with.map((one) => this.argument(one));
    if (step.do === "register_callback") machine.registerCallback(base36(++this.callbacks));
    else VERBS[step.do](machine, given);
    return [];
  }

  /** What it then sends; of an F only the code. */
  sends() {
    return this.machine.outputs().map((one) => {
      if (typeof one !== "string") return hex(one);
      return one.startsWith("F") ? one.split(" ")[0] : one;
    });
  }
}

function told({ fault, ...event }) {
  if (fault) return { type: "fault", reason: fault.reason, code: fault.code };
  if (event.attachments) event.attachments = event.attachments.map(attachment);
  return event;
}

for (const [name, session] of Object.entries(recording("umq-sessions")))
  test(`a recorded session: ${name}`, () => {
    const replay = new Replay(session);
    for (const [number, step] of session.steps.entries()) {
      const events = replay.follow(step).map(told);
      const where = `step ${number}: ${JSON.stringify(step).slice(0, 300)}`;
      assert.deepEqual(events, step.events ?? [], where);
      assert.deepEqual(replay.sends(), step.sends, where);
    }
  });

test("attachments may stand at any place between the texts (UM-04)", () => {
  const texts = ["A1:C1:first", "C2:second", "A2:C3:third", "C4:fourth"];
  const bodies = [1, 2, 3].map((octet) => Uint8Array.of(octet));
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
    const found = calls.map((call) => [call.payload, ...call.attachments.map(([octet]) => octet)]);
    const expected = [["first", 1], ["fourth"], ["second"], ["third", 2, 3]];
    assert.deepEqual(found.sort(), expected, JSON.stringify(order));
  }
});
