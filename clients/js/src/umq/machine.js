/**
 * The client's side of UMQ without I/O: messages in, events and messages out.
 *
 * Its caller gives it what arrives (`receive`), sends what `outputs` returns after each call, and
 * calls `advance` at the time that `deadline` names. `now` is in seconds of any clock that never
 * goes back. A {@link ProtocolFault} or a `fatal` event is the last one; close the socket then.
 */

import { AttachmentLost, ProtocolFault } from "../errors.js";
import { Arriving } from "./arriving.js";
import { bytesOf } from "./attachments.js";
import { FILL_SECONDS } from "./terms.js";
import { Code, VERSION, base36, decode, encode, isId, partition, valueOf } from "./wire.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./events.js").Ordered} Ordered */
/** @typedef {import("./events.js").ResultEvent} ResultEvent */
/** @typedef {import("./events.js").UmqEvent} UmqEvent */
/** @typedef {import("./terms.js").UmqLimits} UmqLimits */
/** @typedef {import("./wire.js").Frame} Frame */

/** One session of a client. */
export class Machine extends Arriving {
  /**
   * @param {{limits?: Partial<UmqLimits>, now?: number}} [options] the time for `W` runs from `now`
   */
  constructor({ limits = {}, now = 0 } = {}) {
    super(limits, now);
    this._deadlines.set("hello", now + this.limits["hello-seconds"]);
    this._attributesBytes = 0;
    /** @type {Map<string, {value: string, attachments: Attachment[], bytes: number}>} */
    this.attributes = new Map();
  }

  // ── messages in ──────────────────────────────────────────────────────────────────────────────

  /**
   * Follow one WebSocket message: text, or the bytes of a binary one.
   *
   * @param {string | Uint8Array} message
   * @param {number} now
   * @returns {UmqEvent[]}
   */
  receive(message, now) {
    this._now = Math.max(now, this._now);
    /** @type {UmqEvent[]} */
    const events = [];
    if (this.closed) return events;
    if (typeof message === "string") {
      const frame = decode(message, this.limits);
      if (frame instanceof ProtocolFault) this._fail(frame, events);
      else if (!this._step(frame.command))
        this._fault("state", `${frame.command} cannot be here (${this.state})`, events);
      else this._actions[frame.command](frame, events);
    } else if (!this._step("attachment")) {
      this._fault("stray", "a binary message before the session stands", events);
    } else if (message.length > this.limits["attachment-bytes"]) {
      this._fault("attachment-bytes", "an attachment above its limit", events);
    } else {
      this._fill(message, events);
    }
    return events;
  }

  /** @type {Record<string, (frame: Frame, events: UmqEvent[]) => void>} */
  _actions = {
    welcome: (frame, events) => {
      const version = valueOf(frame.id);
      if (version !== base36(VERSION)) {
        this._fault("version", `W has version ${version}, H had ${VERSION}`, events, Code.UNSUPPORTED_VERSION);
        return;
      }
      this._barrier = [];
      const { payload } = frame;
      this._deliver({ type: "welcome", version: VERSION, payload, attachments: [] }, frame, null, events);
    },
    fatal: ({ payload }, events) => {
      const [, code, text] = /^([0-9]{1,9})(?: ([^]*))?$/.exec(payload) ?? [];
      this._end();
      if (code === undefined) events.push({ type: "fatal", code: null, text: payload });
      else events.push({ type: "fatal", code: Number(code), text: text ?? "" });
    },
    "attachment-error": ({ payload }, events) => this._fill(new AttachmentLost(payload), events),
    call: (frame, events) => {
      if (this._serve(frame, events))
        this._deliver({ type: "call", id: frame.id, payload: frame.payload, attachments: [] }, frame, null, events);
    },
    callback: (frame, events) => {
      const [digits, payload] = partition(frame.payload);
      if (payload === null || !isId(digits)) {
        this._fault("callback", "B carries no callback id and colon", events);
      } else if (this._serve(frame, events)) {
        const callback = valueOf(digits);
        if (this._callbacks.has(callback)) {
          this._deliver({ type: "callback", id: frame.id, callback, payload, attachments: [] }, frame, null, events);
        } else {
          this._served(valueOf(frame.id));
          this._refuse(frame, Code.CALLBACK_NOT_FOUND, "callback not found", events);
        }
      }
    },
    result: (frame, events) => {
      const number = valueOf(frame.id);
      const call = this._pending.get(number);
      if (!call || call.answer) {
        this._discard(frame, events);
        return;
      }
      const { payload } = frame;
      const message = { type: "result", waiter: call.waiter, payload, attachments: [], number };
      call.answer = this._deliver(/** @type {any} */ (message), frame, null, events);
      if (call.answer && call.streamed) {
        this._incoming.stream(call.answer);
        this._emit(/** @type {any} */ (Object.assign(message, { coming: frame.attachments })), events);
      }
    },
    error: ({ id, payload }, events) => {
      const number = valueOf(id);
      const call = this._pending.get(number);
      if (!call || call.answer) return;
      this._pending.delete(number);
      this._give({ type: "error", waiter: call.waiter, payload, number }, events);
    },
    update: (frame, events) => {
      const topic = valueOf(frame.id);
      if (this._subscriptions.has(topic)) {
        const { payload } = frame;
        this._deliver({ type: "update", topic, payload, attachments: [] }, frame, `topic ${topic}`, events);
      } else {
        this._unknownUpdate(topic, frame.id);
        this._discard(frame, events);
      }
    },
    "close-topic": ({ id }, events) => {
      const topic = valueOf(id);
      if (!this._subscriptions.has(topic)) this._closing.delete(topic);
      else this._inTurn({ type: "topic-closed", topic }, `topic ${topic}`, 0, events);
    },
    unsubscribe: ({ id }, events) => {
      const topic = valueOf(id);
      if (!this._published.delete(topic)) return;
      this._out.push(encode("D", id, ""));
      this._give({ type: "unsubscribed", topic }, events);
    },
    set: (frame, events) => {
      const at = frame.payload.indexOf("=");
      if (at < 0) {
        this._fault("attribute", "S carries no name=value", events);
      } else {
        const name = frame.payload.slice(0, at);
        const value = frame.payload.slice(at + 1);
        this._deliver({ type: "set", name, value, attachments: [] }, frame, `attribute ${name}`, events);
      }
    },
    unset: ({ payload: name }, events) =>
      this._inTurn({ type: "unset", name }, `attribute ${name}`, 0, events),
  };

  /**
   * May this call be served? Its id is pending then (UM-09, UM-20).
   *
   * @param {Frame} frame
   * @param {UmqEvent[]} events
   */
  _serve(frame, events) {
    const number = valueOf(frame.id);
    if (this._serving.has(number)) {
      this._fault("duplicate", `the call id ${frame.id} is pending already`, events);
      return false;
    }
    const { limits } = this;
    if (this._serving.size >= limits.calls || this._servingBytes > limits["calls-bytes"]) {
      this._refuse(frame, Code.UNAVAILABLE, "too many calls are pending", events);
      return false;
    }
    const bytes = frame.payload.length;
    this._serving.set(number, { id: frame.id, bytes });
    this._servingBytes += bytes;
    return true;
  }


  /**
   * @param {Frame} frame
   * @param {number} code
   * @param {string} why
   * @param {UmqEvent[]} events
   */
  _refuse(frame, code, why, events) {
    this._out.push(encode("E", frame.id, `${code} ${why}`));
    this._discard(frame, events);
  }

  /**
   * Say `U` once to an update that nobody wants, then be silent (UM-12, UM-14).
   *
   * @param {string} topic
   * @param {string} id
   */
  _unknownUpdate(topic, id) {
    if (this._closing.has(topic)) return;
    this._out.push(encode("U", id, ""));
    this._closeTopicHere(topic);
  }

  /**
   * Do what `message` says and deliver it: it is complete and its turn has come.
   *
   * @param {Ordered} message
   * @param {UmqEvent[]} events
   */
  _emit(message, events) {
    if (this.closed) return;
    if (message.type === "welcome") {
      this._deadlines.clear("hello");
      const held = this._barrier ?? [];
      this._barrier = null;
      events.push(message, ...held);
      return;
    }
    if (message.type === "call" || message.type === "callback") this._weigh(message);
    else if (message.type === "result") this._pending.delete(message.number);
    else if (message.type === "update" || message.type === "topic-closed") {
      if (!this._topicEvent(message)) return;
    } else if (!this._attributeEvent(message, events)) return;
    this._give(message, events);
  }

  /**
   * The attachments of a call weigh until it is answered (UM-20).
   *
   * @param {{id: string, attachments: Attachment[]}} call
   */
  _weigh(call) {
    const bytes = bytesOf(call.attachments);
    const served = this._serving.get(valueOf(call.id));
    if (served) served.bytes += bytes;
    this._servingBytes += bytes;
  }

  /**
   * Is this topic still subscribed, now that the message's turn has come?
   *
   * @param {{type: "update" | "topic-closed", topic: string}} message
   */
  _topicEvent({ type, topic }) {
    const subscribed = this._subscriptions.has(topic);
    if (type === "topic-closed") {
      this._subscriptions.delete(topic);
      this._closing.delete(topic);
    } else if (!subscribed) {
      this._unknownUpdate(topic, topic);
    }
    return subscribed;
  }

  /**
   * Put the attribute's change in force; false (and a fault) above the limits (UM-20).
   *
   * @param {Extract<UmqEvent, {type: "set" | "unset"}>} message
   * @param {UmqEvent[]} events
   */
  _attributeEvent(message, events) {
    const before = this.attributes.get(message.name);
    if (before) this._attributesBytes -= before.bytes;
    this.attributes.delete(message.name);
    if (message.type === "unset") return true;
    const { name, value, attachments } = message;
    const bytes = utf8(name).length + utf8(value).length + bytesOf(attachments);
    this._attributesBytes += bytes;
    const { limits } = this;
    if (this.attributes.size >= limits.attributes || this._attributesBytes > limits["attributes-bytes"]) {
      this._fault("attributes", "too many attributes", events, Code.REJECTED);
      return false;
    }
    this.attributes.set(name, { value, attachments, bytes });
    return true;
  }

  // ── time ─────────────────────────────────────────────────────────────────────────────────────

  /** @type {Record<string, (now: number, events: UmqEvent[]) => void>} */
  _timely = {
    hello: (now, events) => this._fault("hello-seconds", "no H and no W in time", events, Code.REJECTED),
    attachment: (now, events) => this._attachmentLate(now, events),
    call: (now, events) => {
      let following = Infinity;
      for (const [number, call] of this._pending) {
        if (call.deadline > now) {
          following = Math.min(following, call.deadline);
        } else {
          this.cancel(number);
          events.push({ type: "expired", waiter: call.waiter, number });
        }
      }
      if (following < Infinity) this._deadlines.set("call", following);
    },
    fill: (now) => {
      const { first } = this._outgoing;
      if (first && now >= this._outgoingSince + FILL_SECONDS)
        this.fillError(first, "the attachment is not there in time");
      if (this._outgoing.first) this._deadlines.set("fill", this._outgoingSince + FILL_SECONDS);
    },
    closing: (now) => {
      for (const [topic, at] of this._closing) {
        if (at > now) {
          this._deadlines.set("closing", at);
          break;
        }
        this._closing.delete(topic);
      }
    },
  };
}

const encoder = new TextEncoder();

/** @param {string} text */
function utf8(text) {
  return encoder.encode(text);
}
