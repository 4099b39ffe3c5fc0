/** A recorded session of sABC, once more with our machine. */

import assert from "node:assert/strict";

import { Machine } from "../src/sabc/machine.js";
import { jsonOf, bytes, wire } from "./recorded.js";

/** How the verbs of a recording are said here. */
const VERBS = {
  connect: (machine, [id, passcode, headers]) => machine.connect(id, passcode, headers),
  request: (machine, [body, waiter, headers], due) => machine.request(bytes(body), waiter, due, headers),
  pieces: (machine, [pieces, waiter], due) => opened(machine, pieces, waiter, due).finish(),
  abort: (machine, [pieces, waiter], due) => opened(machine, pieces, waiter, due).abort(),
  sendOnly: (machine, [body, headers]) => machine.sendOnly(bytes(body), headers),
  answer: (machine, [id, body, headers]) => machine.answer(id, bytes(body), headers),
  refuse: (machine, given) => machine.refuse(...given),
  sendError: (machine, given) => machine.sendError(...given),
  forget: (machine, [id]) => machine.forget(id),
  disconnect: (machine) => machine.disconnect(),
  stop: (machine) => machine.stop(),
};

function opened(machine, pieces, waiter, due) {
  const outgoing = machine.openRequest(waiter, due);
  for (const piece of pieces) outgoing.write(bytes(piece));
  return outgoing;
}

function follow(machine, step) {
  machine.advanceClock(step.now);
  if ("receives" in step) return step.receives.flatMap((one) => machine.receive(wire(one), step.now));
  if ("advance" in step) return machine.advance(step.now);
  VERBS[step.do](machine, step.with, step.now + machine.limits["response-seconds"]);
  return [];
}

function told({ fault, ...event }) {
  if (fault) return { type: "fault", reason: fault.reason };
  if (event.body) event.body = jsonOf(event.body);
  if (event.expires) event.expires = event.expires.toISOString().replace(".000Z", "+00:00");
  return event;
}

/** What a client sends; of an ERROR's text only that there is one. */
function sent(message) {
  const text = jsonOf(message);
  if (typeof text !== "string" || !text.startsWith("ERROR")) return text;
  return text.slice(0, text.indexOf("\r\n\r\n") + 4);
}

/** Assert that our machine tells and sends what is recorded. */
export function replayOf(session, title) {
  const machine = new Machine({ limits: session.limits });
  for (const [number, step] of session.steps.entries()) {
    const events = follow(machine, step).map(told);
    const where = `${title}, step ${number}: ${JSON.stringify(step).slice(0, 300)}`;
    assert.deepEqual(events, step.events ?? [], where);
    assert.deepEqual(machine.outputs().map(sent), step.sends, where);
  }
}
