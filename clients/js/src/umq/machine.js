/**
 * The client's side of UMQ without I/O: messages in, events and messages out.
 *
 * Its caller gives it what arrives (`receive`), sends what `outputs` returns after each call, and
 * calls `advance` at the time that `deadline` names. `now` is in seconds of any clock that never
 * goes back. A {@link ProtocolFault} or a `fatal` event is the last one; close the socket then.
 */

import { AttachmentLost, ConnectionClosed, LimitExceeded, ProtocolFault } from "../errors.js";
import { limitsOf } from "../limits.js";
import { TimedMachine } from "../machine.js";
import { Incoming, Outgoing, Slot } from "./attachments.js";
import { CLIENT, LIMITS } from "./terms.js";
import { Code, VERSION, base36, charactersOf, decode, encode, isId, partition, valueOf } from "./wire.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./terms.js").UmqLimits} UmqLimits */
/** @typedef {import("./terms.js").State} State */
/** @typedef {import("./wire.js").Frame} Frame */

/**
 * What a machine tells. Messages come when all their attachments are there.
 *
 * @typedef {{type: "welcome", version: number, payload: string, attachments: Attachment[]}
 *   | {type: "call", id: string, payload: string, attachments: Attachment[]}
 *   | {type: "callback", id: string, callback: string, payload: string, attachments: Attachment[]}
 *   | ResultEvent
 *   | {type: "attachment", result: ResultEvent, attachment: Attachment}
 *   | {type: "error", waiter: unknown, payload: string, number: string}
 *   | {type: "expired", waiter: unknown, number: string}
 *   | {type: "update", topic: string, payload: string, attachments: Attachment[]}
 *   | {type: "topic-closed", topic: string}
 *   | {type: "unsubscribed", topic: string}
 *   | {type: "set", name: string, value: string, attachments: Attachment[]}
 *   | {type: "unset", name: string}
 *   | {type: "fatal", code: number | null, text: string}
 *   | {type: "fault", fault: ProtocolFault}} UmqEvent
 */

/**
 * The answer to a call of ours. `coming` counts the attachments that follow, each in an event of its
 * own, because the call is to be streamed (UM-19).
 *
 * @typedef {{type: "result", waiter: unknown, payload: string, attachments: Attachment[],
 *   number: string, coming?: number}} ResultEvent
 */

/** @typedef {Extract<UmqEvent, {attachments: Attachment[]}> | Extract<UmqEvent, {type: "topic-closed" | "unset"}>} Ordered */

/**
 * @typedef {object} OwnCall
 * @property {unknown} waiter
 * @property {number} deadline
 * @property {import("./attachments.js").Announcement<any> | null} answer the announcement of its result's attachments
 * @property {boolean} streamed its result comes before its attachments
 */

const UNPAIRED = /\p{Surrogate}/u;

/**
 * One session of a client.
 *
 * @extends {TimedMachine<State, UmqEvent>}
 */
export class Machine extends TimedMachine {
  /**
   * @param {{limits?: Partial<UmqLimits>, now?: number}} [options] the time for `W` runs from `now`
   */
  constructor({ limits = {}, now = 0 } = {}) {
    super(CLIENT, "start", now);
    this.limits = limitsOf(LIMITS, limits);
    /** @type {(string | Uint8Array)[]} */
    this._out = [];
    this._deadlines.set("hello", now + this.limits["hello-seconds"]);
    /** @type {Incoming<any>} */
    this._incoming = new Incoming();
    this._incomingSince = now;
    this._outgoing = new Outgoing();
    this._outgoingSince = now;
    /** @type {UmqEvent[] | null} What waits for the attachments of `W`. */
    this._barrier = null;
    /** @type {Map<string, {id: string, octets: number}>} The peer's calls by value. */
    this._serving = new Map();
    this._servingOctets = 0;
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
    this._attributesOctets = 0;
    /** @type {Map<string, {value: string, attachments: Attachment[], octets: number}>} */
    this.attributes = new Map();
  }

  /** Calls of ours without an answer. */
  get callsPending() {
    return this._pending.size;
  }

  /** Return and forget the messages to send, in order. */
  outputs() {
    const out = this._out;
    this._out = [];
    return out;
  }

  // ── messages in ──────────────────────────────────────────────────────────────────────────────

  /**
   * Follow one WebSocket message: text, or the octets of a binary one.
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
    } else if (message.length > this.limits["attachment-octets"]) {
      this._fault("attachment-octets", "an attachment above its limit", events);
    } else {
      this._fill(message, events);
    }
    return events;
  }

  /**
   * The peer broke the protocol: say `F` as the last command (UM-08, UM-18).
   *
   * @param {ProtocolFault} fault
   * @param {UmqEvent[]} events
   */
  _fail(fault, events) {
    this._step("faulted");
    this._out.push(encode("F", "0", `${fault.code} ${fault.message}`));
    this._end();
    events.push({ type: "fault", fault });
  }

  /**
   * @param {string} reason
   * @param {string} text
   * @param {UmqEvent[]} events
   * @param {number} [code]
   */
  _fault(reason, text, events, code = Code.FORMAT) {
    this._fail(new ProtocolFault(reason, text, code), events);
  }

  _end() {
    this._deadlines.clearAll();
    this._outgoing.clear();
    this._barrier = null;
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
    if (this._serving.size >= limits.calls || this._servingOctets > limits["calls-octets"]) {
      this._refuse(frame, Code.UNAVAILABLE, "too many calls are pending", events);
      return false;
    }
    const octets = frame.payload.length;
    this._serving.set(number, { id: frame.id, octets });
    this._servingOctets += octets;
    return true;
  }

  /** @param {string} number */
  _served(number) {
    const served = this._serving.get(number);
    if (served) this._servingOctets -= served.octets;
    this._serving.delete(number);
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

  /** @param {string} topic */
  _closeTopicHere(topic) {
    const at = this._now + this.limits["closing-seconds"];
    this._closing.set(topic, at);
    this._deadlines.noLater("closing", at);
    if (this._closing.size > this.limits["closing-topics"])
      for (const first of this._closing.keys()) {
        this._closing.delete(first);
        break;
      }
  }

  // ── messages and their attachments ───────────────────────────────────────────────────────────

  /**
   * Deliver `message` now, or when its attachments are there and its turn has come.
   *
   * @param {Extract<UmqEvent, {attachments: Attachment[]}>} message
   * @param {Frame} frame
   * @param {string | null} key
   * @param {UmqEvent[]} events
   */
  _deliver(message, frame, key, events) {
    if (frame.attachments) return this._announce(message, frame, key, events);
    if (key === null) this._emit(message, events);
    else this._inTurn(message, key, frame.payload.length, events);
    return null;
  }

  /**
   * Deliver a complete message, behind earlier ones of its key (UM-04).
   *
   * @param {Ordered} message
   * @param {string} key
   * @param {number} weight
   * @param {UmqEvent[]} events
   */
  _inTurn(message, key, weight, events) {
    if (!this._incoming.queued(message, key, weight)) this._emit(message, events);
    else if (this._incoming.waiting > this.limits["waiting-messages"])
      this._fault("waiting-messages", "too many messages wait for attachments", events);
    else this._tooMuchWaits(events);
  }

  /**
   * @param {Extract<UmqEvent, {attachments: Attachment[]}> | null} message
   * @param {Frame} frame
   * @param {string | null} key
   * @param {UmqEvent[]} events
   */
  _announce(message, frame, key, events) {
    if (this._incoming.open >= this.limits.announcements) {
      this._fault("announcements", "too many messages with attachments to come", events);
      return null;
    }
    if (!this._incoming.open) {
      this._incomingSince = this._now;
      this._deadlines.noLater("attachment", this._now + this.limits["attachment-seconds"]);
    }
    const announcement = this._incoming.announce(message, frame.attachments, key, frame.payload.length);
    return this._tooMuchWaits(events) ? null : announcement;
  }

  /**
   * A message that nobody gets still owns its slots (UM-04).
   *
   * @param {Frame} frame
   * @param {UmqEvent[]} events
   */
  _discard(frame, events) {
    if (frame.attachments) this._announce(null, frame, null, events);
  }

  /** @param {UmqEvent[]} events */
  _tooMuchWaits(events) {
    if (this._incoming.octets <= this.limits["attachments-octets"]) return false;
    this._fault("attachments-octets", "what waits for attachments is above its limit", events);
    return true;
  }

  /**
   * @param {Attachment} attachment
   * @param {UmqEvent[]} events
   */
  _fill(attachment, events) {
    if (!this._incoming.open) {
      this._fault("stray", "an attachment which no message announced", events);
      return;
    }
    this._incomingSince = this._now;
    const { first } = this._incoming;
    const ready = this._incoming.fill(attachment);
    if (this._tooMuchWaits(events)) return;
    if (first?.streamed && first.message)
      this._give({ type: "attachment", result: first.message, attachment }, events);
    for (const message of ready) this._emit(message, events);
  }

  /**
   * Return the event to the caller, unless the attachments of `W` are still to come (UM-07).
   *
   * @param {UmqEvent} event
   * @param {UmqEvent[]} events
   */
  _give(event, events) {
    (this._barrier ?? events).push(event);
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
    const octets = octetsOf(call.attachments);
    const served = this._serving.get(valueOf(call.id));
    if (served) served.octets += octets;
    this._servingOctets += octets;
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
    if (before) this._attributesOctets -= before.octets;
    this.attributes.delete(message.name);
    if (message.type === "unset") return true;
    const { name, value, attachments } = message;
    const octets = utf8(name).length + utf8(value).length + octetsOf(attachments);
    this._attributesOctets += octets;
    const { limits } = this;
    if (this.attributes.size >= limits.attributes || this._attributesOctets > limits["attributes-octets"]) {
      this._fault("attributes", "too many attributes", events, Code.REJECTED);
      return false;
    }
    this.attributes.set(name, { value, attachments, octets });
    return true;
  }

  // ── time ─────────────────────────────────────────────────────────────────────────────────────

  /** @type {Record<string, (now: number, events: UmqEvent[]) => void>} */
  _timely = {
    hello: (now, events) => this._fault("hello-seconds", "no H and no W in time", events, Code.REJECTED),
    attachment: (now, events) => {
      if (!this._incoming.open) return;
      const deadline = this._incomingSince + this.limits["attachment-seconds"];
      if (now < deadline) this._deadlines.set("attachment", deadline);
      else this._fault("attachment-seconds", "the next attachment did not come in time", events);
    },
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
      const seconds = this.limits["attachment-fill-seconds"];
      const { first } = this._outgoing;
      if (first && now >= this._outgoingSince + seconds)
        this.fillError(first, "the attachment is not there in time");
      if (this._outgoing.first) this._deadlines.set("fill", this._outgoingSince + seconds);
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

  // ── verbs ────────────────────────────────────────────────────────────────────────────────────

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
      if (!(attachment instanceof Uint8Array)) throw new TypeError("an attachment is octets or a Slot");
      if (attachment.length > this.limits["attachment-octets"])
        throw new LimitExceeded("an attachment is above attachment-octets");
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
    if (this._outgoing.first)
      this._deadlines.noLater("fill", this._outgoingSince + this.limits["attachment-fill-seconds"]);
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
   * Fill a slot that was passed to a verb; one above `attachment-octets` is replaced by `-`.
   *
   * @param {Slot} slot
   * @param {Uint8Array} body
   */
  fill(slot, body) {
    if (body.length > this.limits["attachment-octets"]) {
      this.fillError(slot, "the attachment is too large");
    } else if (!slot.filled) {
      slot.body = body;
      this._sendSlots();
    }
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
   * Call what the peer registered as `callback` (UM-11); otherwise like `call`.
   *
   * @param {string} callback
   * @param {string} argument
   * @param {readonly (Uint8Array | Slot)[]} attachments
   * @param {unknown} waiter
   * @param {number} deadline
   * @param {boolean} streamed
   */
  callback(callback, argument, attachments = [], waiter = null, deadline = Infinity, streamed = false) {
    if (!isId(callback)) throw new TypeError(`${callback} is no callback id`);
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
   * Nobody waits for this call any more; its answer will be ignored. False if it is too late.
   *
   * @param {string} number
   */
  cancel(number) {
    const call = this._pending.get(number);
    if (!call) return false;
    this._pending.delete(number);
    if (call.answer) this._incoming.forget(call.answer);
    return true;
  }

  /**
   * Nobody wants the attachments that are still to come of a streamed answer.
   *
   * @param {ResultEvent} result
   */
  dropAttachments(result) {
    this._incoming.drop(result);
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
    if (this._subscriptions.size >= this.limits.subscriptions)
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
   * The peer subscribed and chose `id`: publish to the topic that this returns (UM-12).
   *
   * @param {string} id
   */
  openTopic(id) {
    this._opened();
    const topic = valueOf(id);
    if (!id || !isId(id)) throw new TypeError(`${id.slice(0, 40)} is no topic id`);
    if (this._published.has(topic)) throw new TypeError(`the topic id ${id} is in use`);
    if (this._published.size >= this.limits.topics)
      throw new LimitExceeded(`${this._published.size} topics are open already`);
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
    if (name.includes("=")) throw new TypeError(`an attribute's name has no '=': ${name}`);
    this._send("S", "", `${name}=${value}`, attachments);
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

const encoder = new TextEncoder();

/** @param {string} text */
function utf8(text) {
  return encoder.encode(text);
}

/** @param {readonly Attachment[]} attachments */
function octetsOf(attachments) {
  return attachments.reduce((sum, one) => sum + (one instanceof Uint8Array ? one.length : 0), 0);
}
