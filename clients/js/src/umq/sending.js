/** What a client says: every verb becomes messages, within the limits of UMQ. */

import { ConnectionClosed, LimitExceeded, Refused } from "../errors.js";
import { limitsOf } from "../limits.js";
import { TimedMachine } from "../machine.js";
import { Outgoing, Slot } from "./attachments.js";
import { CLIENT, CLOSING_SECONDS, CLOSING_TOPICS, FILL_SECONDS, LIMITS } from "./terms.js";
import { Code, VERSION, base36, charactersOf, encode, isId, valueOf } from "./wire.js";

/** @typedef {import("./events.js").UmqEvent} UmqEvent */
/** @typedef {import("./terms.js").UmqLimits} UmqLimits */
/** @typedef {import("./terms.js").State} State */

/**
 * @typedef {object} OwnCall
 * @property {unknown} waiter
 * @property {number} deadline
 * @property {import("./attachments.js").Announcement<any> | null} answer the announcement of its result's attachments
 * @property {boolean} streamed its result comes before its attachments
 */

const UNPAIRED = /\p{Surrogate}/u;

/**
 * The payload that sets an attribute; throws TypeError for what has none.
 *
 * @param {string} name
 * @param {string} value
 */
export function assignment(name, value) {
  if (typeof name !== "string" || typeof value !== "string")
    throw new TypeError("an attribute's name and value are text");
  if (name.includes("=")) throw new TypeError(`an attribute's name has no '=': ${name}`);
  return `${name}=${value}`;
}

/**
 * The verbs of a session. The rest of it, what arrives, is in the subclasses.
 *
 * @extends {TimedMachine<State, UmqEvent>}
 */
export class Sending extends TimedMachine {
  /**
   * @param {Partial<UmqLimits>} limits
   * @param {number} now
   */
  constructor(limits, now) {
    super(CLIENT, "start", now);
    this.limits = limitsOf(LIMITS, limits);
    /** @type {(string | Uint8Array)[]} */
    this._out = [];
    this._outgoing = new Outgoing();
    this._outgoingSince = now;
    /** @type {Map<string, {id: string, bytes: number}>} The peer's calls by value. */
    this._serving = new Map();
    this._servingBytes = 0;
    /** @type {Map<string, OwnCall>} */
    this._pending = new Map();
    this._lastCall = 0;
    this._lastTopic = 0;
    /** @type {Set<string>} */
    this._callbacks = new Set();
    /** @type {Set<string>} */
    this._subscriptions = new Set();
    /** @type {Map<string, number>} Topics that ended here and when to forget them. */
    this._closing = new Map();
    /** @type {Map<string, string>} The peer's topics by value, with the id as it came. */
    this._published = new Map();
  }

  /** Calls of ours without an answer. */
  get callsPending() {
    return this._pending.size;
  }

  /** Calls of the peer without an answer. */
  get callsServed() {
    return this._serving.size;
  }

  /** Return and forget the messages to send, in order. */
  outputs() {
    const out = this._out;
    this._out = [];
    return out;
  }

  /** The session is over: nothing is due any more. */
  _end() {
    this._deadlines.clearAll();
    this._outgoing.clear();
  }

  /** @param {string} number */
  _served(number) {
    const served = this._serving.get(number);
    if (served) this._servingBytes -= served.bytes;
    this._serving.delete(number);
  }

  /** @param {string} topic */
  _closeTopicHere(topic) {
    const at = this._now + CLOSING_SECONDS;
    this._closing.set(topic, at);
    this._deadlines.noLater("closing", at);
    if (this._closing.size > CLOSING_TOPICS)
      for (const first of this._closing.keys()) {
        this._closing.delete(first);
        break;
      }
  }

  /** Throw ConnectionClosed unless the session stands. */
  _opened() {
    if (!this.open) throw new ConnectionClosed("there is no session");
  }

  /**
   * Throw what a verb would throw for this payload and these attachments.
   *
   * @param {string} payload
   * @param {readonly (Uint8Array | Slot)[]} attachments
   */
  check(payload, attachments = []) {
    if (typeof payload !== "string") throw new TypeError("a payload is text");
    const most = this.limits["payload-characters"];
    if (charactersOf(payload, most) > most) throw new LimitExceeded("the payload is above payload-characters");
    if (UNPAIRED.test(payload)) throw new TypeError("a payload has no unpaired surrogates");
    if (attachments.length > this.limits.attachments)
      throw new LimitExceeded(`${attachments.length} attachments are above the limit`);
    for (const attachment of attachments) {
      if (attachment instanceof Slot) continue;
      if (!(attachment instanceof Uint8Array)) throw new TypeError("an attachment is bytes or a Slot");
      if (attachment.length > this.limits["attachment-bytes"])
        throw new LimitExceeded("an attachment is above attachment-bytes");
    }
  }

  /**
   * @param {keyof typeof import("./wire.js").COMMANDS} letter
   * @param {string} id
   * @param {string} payload
   * @param {readonly (Uint8Array | Slot)[]} [attachments]
   */
  _send(letter, id, payload, attachments = []) {
    this.check(payload, attachments);
    this._out.push(encode(letter, id, payload, attachments.length));
    if (!attachments.length) return;
    if (!this._outgoing.first) this._outgoingSince = this._now;
    this._outgoing.add(attachments);
    this._sendSlots();
    if (this._outgoing.first) this._deadlines.noLater("fill", this._outgoingSince + FILL_SECONDS);
  }

  _sendSlots() {
    for (const slot of this._outgoing.due()) {
      this._outgoingSince = this._now;
      this._out.push(slot.body ?? encode("-", "", slot.error ?? ""));
    }
  }

  /** The slot of ours that all later ones wait for, or undefined. */
  get slotDue() {
    return this._outgoing.first;
  }

  /**
   * Fill a slot that was passed to a verb; one above `attachment-bytes` is replaced by `-`, and
   * throws LimitExceeded.
   *
   * @param {Slot} slot
   * @param {Uint8Array} body
   */
  fill(slot, body) {
    if (body.length > this.limits["attachment-bytes"]) {
      this.fillError(slot, "the attachment is too large");
      throw new LimitExceeded("an attachment is above attachment-bytes");
    }
    if (slot.filled) return;
    slot.body = body;
    this._sendSlots();
  }

  /**
   * Send `-` for this slot: there will be no attachment (UM-04).
   *
   * @param {Slot} slot
   * @param {string} text
   */
  fillError(slot, text) {
    if (slot.filled) return;
    slot.error = text;
    this._sendSlots();
  }

  /**
   * Say `H`, the first verb of all (UM-06).
   *
   * @param {string} [payload]
   * @param {readonly (Uint8Array | Slot)[]} [attachments]
   */
  hello(payload = "", attachments = []) {
    if (this.state !== "start") throw new ConnectionClosed("H is said once, at the beginning");
    this._send("H", base36(VERSION), payload, attachments);
    this._step("hello-sent");
  }

  /**
   * Call the peer (UM-09); the answer's event carries `waiter`. Returns the call's number.
   *
   * @param {string} payload
   * @param {readonly (Uint8Array | Slot)[]} attachments
   * @param {unknown} waiter
   * @param {number} deadline when `expired` comes instead
   * @param {boolean} streamed the answer's attachments come one by one (UM-19)
   */
  call(payload, attachments = [], waiter = null, deadline = Infinity, streamed = false) {
    return this._ownCall("C", payload, attachments, waiter, deadline, streamed);
  }

  /**
   * Call what the peer registered as `callback` (UM-11); otherwise like `call`. Throws Refused for what
   * is no id: the peer has given it.
   *
   * @param {string} callback
   * @param {string} argument
   * @param {readonly (Uint8Array | Slot)[]} attachments
   * @param {unknown} waiter
   * @param {number} deadline
   * @param {boolean} streamed
   */
  callback(callback, argument, attachments = [], waiter = null, deadline = Infinity, streamed = false) {
    if (typeof callback !== "string" || !isId(callback))
      throw new Refused(`'${String(callback).slice(0, 40)}' is no callback id`, Code.CALLBACK_NOT_FOUND);
    return this._ownCall("B", `${valueOf(callback)}:${argument}`, attachments, waiter, deadline, streamed);
  }

  /**
   * @param {"C" | "B"} letter
   * @param {string} payload
   * @param {readonly (Uint8Array | Slot)[]} attachments
   * @param {unknown} waiter
   * @param {number} deadline
   * @param {boolean} streamed
   */
  _ownCall(letter, payload, attachments, waiter, deadline, streamed) {
    this._opened();
    if (this._pending.size >= this.limits["own-calls"])
      throw new LimitExceeded(`${this._pending.size} calls are pending`);
    const number = base36(this._lastCall + 1);
    this._send(letter, number, payload, attachments);
    this._lastCall++;
    this._pending.set(number, { waiter, deadline, answer: null, streamed });
    if (deadline < Infinity) this._deadlines.noLater("call", deadline);
    return number;
  }

  /**
   * Answer the peer's call `id` (UM-10); nothing happens if it is not pending.
   *
   * @param {string} id
   * @param {string} payload
   * @param {readonly (Uint8Array | Slot)[]} [attachments]
   */
  result(id, payload, attachments = []) {
    this._answer("R", id, payload, attachments);
  }

  /**
   * Refuse the peer's call `id`, or say that it failed (UM-09).
   *
   * @param {string} id
   * @param {string} payload
   */
  error(id, payload) {
    this._answer("E", id, payload, []);
  }

  /**
   * @param {"R" | "E"} letter
   * @param {string} id
   * @param {string} payload
   * @param {readonly (Uint8Array | Slot)[]} attachments
   */
  _answer(letter, id, payload, attachments) {
    this._opened();
    const served = this._serving.get(valueOf(id));
    if (!served) return;
    this._send(letter, served.id, payload, attachments);
    this._served(valueOf(id));
  }

  /**
   * The peer may call `callback` until it is unregistered (UM-11).
   *
   * @param {string} callback
   */
  registerCallback(callback) {
    if (this._callbacks.size >= this.limits.callbacks)
      throw new LimitExceeded(`${this._callbacks.size} callbacks are registered already`);
    this._callbacks.add(callback);
  }

  /** @param {string} callback */
  unregisterCallback(callback) {
    this._callbacks.delete(callback);
  }

  /** A new topic, known before the call that asks the peer to publish to it (UM-14). */
  subscribe() {
    this._opened();
    if (this._subscriptions.size >= this.limits["own-subscriptions"])
      throw new LimitExceeded(`${this._subscriptions.size} topics are subscribed already`);
    const topic = base36(++this._lastTopic);
    this._subscriptions.add(topic);
    return topic;
  }

  /**
   * Say `U`; what still comes is dropped silently (UM-14). Nothing if it has ended.
   *
   * @param {string} topic
   */
  unsubscribe(topic) {
    this._opened();
    if (!this._subscriptions.delete(topic)) return;
    this._closeTopicHere(topic);
    this._out.push(encode("U", topic, ""));
  }

  /**
   * The peer subscribed and chose `id`: publish to the topic that this returns (UM-12). Throws
   * Refused, which is for the peer.
   *
   * @param {string} id
   */
  openTopic(id) {
    this._opened();
    if (typeof id !== "string" || !id || !isId(id))
      throw new Refused(`'${String(id).slice(0, 40)}' is no topic id`, Code.FORMAT);
    const topic = valueOf(id);
    if (this._published.has(topic)) throw new Refused(`the topic id ${id} is in use`, Code.FORMAT);
    if (this._published.size >= this.limits.topics)
      throw new Refused(`${this._published.size} topics are open already`, Code.UNAVAILABLE);
    this._published.set(topic, id);
    return topic;
  }

  /**
   * Send an update on an open topic (UM-12); throws ConnectionClosed if the topic was closed.
   *
   * @param {string} topic
   * @param {string} payload
   * @param {readonly (Uint8Array | Slot)[]} [attachments]
   */
  publish(topic, payload, attachments = []) {
    this._opened();
    const id = this._published.get(topic);
    if (id === undefined) throw new ConnectionClosed(`the topic ${topic} is not open`);
    this._send("T", id, payload, attachments);
  }

  /**
   * Say `D` (UM-13); nothing if the topic has ended already.
   *
   * @param {string} topic
   */
  closeTopic(topic) {
    this._opened();
    const id = this._published.get(topic);
    if (id === undefined) return;
    this._published.delete(topic);
    this._out.push(encode("D", id, ""));
  }

  /**
   * Set an attribute at the peer (UM-15).
   *
   * @param {string} name
   * @param {string} value
   * @param {readonly (Uint8Array | Slot)[]} [attachments]
   */
  setAttribute(name, value, attachments = []) {
    this._opened();
    this._send("S", "", assignment(name, value), attachments);
  }

  /**
   * Unset an attribute at the peer (UM-16).
   *
   * @param {string} name
   */
  unsetAttribute(name) {
    this._opened();
    this._send("X", "", name);
  }

  /**
   * Say `F` as our last command (UM-08); then close the socket.
   *
   * @param {number} code
   * @param {string} text
   */
  fatal(code, text) {
    if (this.closed) return;
    this._step("fatal-sent");
    this._out.push(encode("F", "0", `${code} ${text}`));
    this._end();
  }

  /** The connection is gone: the waiters of all calls that have no answer, oldest first. */
  lost() {
    this._step("lost");
    this._end();
    this._out = [];
    const waiters = [...this._pending.values()].map((call) => call.waiter);
    this._pending.clear();
    return waiters;
  }
}
