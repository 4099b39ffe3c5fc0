/** A recorded session of UMQ, once more with our machine. */

import assert from "node:assert/strict";

import { Slot } from "../src/umq/attachments.js";
import { Machine } from "../src/umq/machine.js";
import { base36 } from "../src/umq/wire.js";
import { attachment, hex, wire } from "./recorded.js";

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
    if ("receives" in step) return step.receives.flatMap((one) => machine.receive(wire(one), step.now).map(told));
    if ("advance" in step) return machine.advance(step.now).map(told);
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
  return event.attachments ? { ...event, attachments: event.attachments.map(attachment) } : event;
}

/**
 * Assert that our machine tells and sends what is recorded.
 *
 * @param {number} [free] the events of this step, and what is sent at it, may be in any order
 */
export function replayOf(session, title, free = -1) {
  const replay = new Replay(session);
  for (const [number, step] of session.steps.entries()) {
    const ordered = number === free ? sorted : (list) => list;
    const events = replay.follow(step);
    const where = `${title}, step ${number}: ${JSON.stringify(step).slice(0, 300)}`;
    assert.deepEqual(ordered(events), ordered(step.events ?? []), where);
    assert.deepEqual(ordered(replay.sends()), ordered(step.sends), where);
  }
}

/** Events of one topic, or of one attribute, keep their order. */
function sorted(list) {
  const sortedKeys = (_, one) => (one?.constructor === Object ? Object.fromEntries(Object.entries(one).sort()) : one);
  const key = (one) => ("topic" in Object(one) ? `topic ${one.topic}` : "name" in Object(one) ? `name ${one.name}` : JSON.stringify(one, sortedKeys));
  return list.map((one) => [key(one), one]).sort(([a], [b]) => (a < b ? -1 : Number(a > b))).map(([, one]) => one);
}
