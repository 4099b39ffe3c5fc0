/** One UMQ session on one socket: the machine's events become promises and calls of hooks. */

import {
  ConnectionClosed,
  NoSuchMethod,
  Refused,
  SessionRefused,
  TimedOut,
} from "../errors.js";
import { Reading } from "../reading.js";
import { LinkedSession, abortable, lostBecause } from "../session.js";
import { Reply, Stored, answerMethod, bodiesOf, errorText, failureOf, sendable } from "./exchange.js";
import { Machine } from "./machine.js";
import { AttachmentStream } from "./streams.js";
import { Code } from "./wire.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./attachments.js").Slot} Slot */
/** @typedef {import("./exchange.js").Answer} Answer */
/** @typedef {import("./exchange.js").Answering} Answering */
/** @typedef {import("./exchange.js").Sendable} Sendable */
/** @typedef {import("./events.js").UmqEvent} UmqEvent */
/** @typedef {import("./subscription.js").Subscription} Subscription */

/** @typedef {{value: string, attachments: Attachment[]}} Attribute */

/**
 * What the application does for its peer.
 *
 * @typedef {object} Serving
 * @property {import("./exchange.js").Methods} [methods] the peer calls these with JSON
 * @property {Answering} [onCall] answers all other calls of the peer
 * @property {(name: string, attribute: Attribute | null) => unknown} [onAttribute] is told that an
 *   attribute of the peer was set, or (null) unset
 */

/**
 * @typedef {object} CallOptions
 * @property {readonly Sendable[]} [attachments]
 * @property {number} [timeout] seconds for all of it; by default the limit `call-seconds`
 * @property {AbortSignal} [signal] gives the call up, and the attachments of a streamed answer
 * @property {boolean} [streamed] the answer comes before its attachments, which are in its `stream`
 */

/** @typedef {{resolve: (answer: Answer) => void, reject: (error: unknown) => void, signal?: AbortSignal}} Waiter */

/** A topic that the peer subscribed here: publish to it. */
export class Topic {
  /**
   * @param {UmqSession} session
   * @param {string} topic
   */
  constructor(session, topic) {
    this._session = session;
    this._topic = topic;
    /** @type {(why: "unsubscribed" | "closed" | "lost") => void} */
    this._end = () => {};
    /** Fires when nobody can publish to it any more. @type {Promise<"unsubscribed" | "closed" | "lost">} */
    this.ended = new Promise((resolve) => (this._end = resolve));
  }

  /**
   * Send an update; throws ConnectionClosed when the topic has ended, and LimitExceeded while the
   * subscriber reads nothing and too much waits for it.
   *
   * @param {string} payload
   * @param {readonly Sendable[]} [attachments]
   */
  publish(payload, attachments = []) {
    this._session._link.checkRoom();
    this._session._do((machine, bodies) => machine.publish(this._topic, payload, bodies), attachments);
  }

  /** Tell the subscriber that there are no more updates. */
  close() {
    if (!this._session._topics.delete(this._topic)) return;
    this._session._do((machine) => machine.closeTopic(this._topic));
    this._end("closed");
  }
}

/**
 * One session; {@link UmqClient} makes a new one each time it reconnects.
 *
 * @extends {LinkedSession<Machine>}
 */
export class UmqSession extends LinkedSession {
  /**
   * @param {import("../world.js").Socket} socket an open one
   * @param {object} options
   * @param {import("../world.js").World} options.world
   * @param {Partial<import("./terms.js").UmqLimits>} options.limits
   * @param {Serving} options.serving
   * @param {Map<string, Answering>} options.callbacks by id
   * @param {string} options.hello
   * @param {readonly Sendable[]} options.helloAttachments
   * @param {number} options.drainSeconds
   * @param {import("../backlog.js").Backlog} options.backlog
   */
  constructor(socket, { world, limits, serving, callbacks, hello, helloAttachments, drainSeconds, backlog }) {
    super(socket, new Machine({ limits, now: world.now() }), world);
    this._serving = serving;
    this._callbacks = callbacks;
    this._drainSeconds = drainSeconds;
    this._closing = false;
    /** @type {Promise<void> | null} */
    this._closed = null;
    /** What the server said with its welcome. @type {Answer | null} */
    this.welcome = null;
    /** The peer's attributes. @type {Map<string, Attribute>} */
    this.attributes = new Map();
    /** @type {Map<string, Topic>} */
    this._topics = new Map();
    /** @type {Map<string, Subscription>} */
    this._subscriptions = new Map();
    /** @type {Map<Slot, () => Promise<Uint8Array>>} Attachments that are made when their turn comes. */
    this._unmade = new Map();
    this._feeding = false;
    /** @type {Map<object, AttachmentStream>} */
    this._streams = new Map();
    /** @type {() => void} */
    this._idle = () => {};
    this._backlog = backlog;
    this._reading = new Reading(backlog, this._link, world, () => this._machine.callsPending > 0);
    for (const id of callbacks.keys()) this._machine.registerCallback(id);
    this._do((machine, bodies) => machine.hello(hello, bodies), helloAttachments);
  }

  /**
   * Let the machine do something now, and send what it says.
   *
   * @template T
   * @param {(machine: Machine, bodies: (Uint8Array | Slot)[]) => T} verb
   * @param {readonly Sendable[]} [attachments]
   */
  _do(verb, attachments = []) {
    const machine = this._machine;
    machine.advanceClock(this._world.now());
    /** @type {[Slot, () => Promise<Uint8Array>][]} */
    const unmade = [];
    const bodies = bodiesOf(
      attachments,
      (slot, bytes) => void this._fill(slot, bytes),
      (slot, bytes) => unmade.push([slot, bytes]),
    );
    const result = verb(machine, bodies);
    for (const [slot, bytes] of unmade) this._unmade.set(slot, bytes);
    this._link.settle();
    if (this._unmade.size) void this._feed();
    return result;
  }

  /** Make each attachment when its turn has come and the socket has room. */
  async _feed() {
    if (this._feeding) return;
    this._feeding = true;
    for (;;) {
      const slot = this._machine.slotDue;
      const make = slot && this._unmade.get(slot);
      if (!make) break;
      this._unmade.delete(slot);
      await this._link.room();
      if (this._machine.closed) break;
      await this._fill(slot, make());
    }
    this._feeding = false;
  }

  /**
   * Send an attachment when its bytes are there. Why there are none, the program is told; the peer
   * hears that it is lost.
   *
   * @param {Slot} slot
   * @param {Promise<Uint8Array>} bytes
   */
  async _fill(slot, bytes) {
    try {
      const body = await bytes;
      if (!this._machine.closed) this._do((machine) => machine.fill(slot, body));
    } catch (error) {
      if (this._machine.closed) return;
      this._world.report(error);
      this._do((machine) => machine.fillError(slot, "the attachment is not available"));
    }
  }

  // ── events ───────────────────────────────────────────────────────────────────────────────────

  /** @type {{[type in UmqEvent["type"]]: (event: Extract<UmqEvent, {type: type}>) => unknown}} */
  _on = {
    welcome: ({ payload, attachments }) => {
      this.welcome = { payload, attachments };
      this._stands();
      this._reading.begin();
    },
    fatal: ({ code, text }) => this._link.setCloseReason(new SessionRefused(text, code)),
    fault: ({ fault }) => this._link.setCloseReason(fault),
    call: (event) => this._serve({ ...event, callback: null }, this._answering(event.payload)),
    callback: (event) => this._serve(event, this._callbacks.get(event.callback)),
    result: (event) => {
      const { waiter, payload, attachments, coming } = event;
      const { signal } = /** @type {Waiter} */ (waiter);
      const stream = coming ? this._streamOf(event, coming, signal) : undefined;
      this._settled(waiter, ({ resolve }) => resolve(stream ? { payload, attachments, stream } : { payload, attachments }));
    },
    attachment: ({ result, attachment }) => this._streams.get(result)?._arrived(attachment),
    error: ({ waiter, payload }) => this._settled(waiter, ({ reject }) => reject(failureOf(payload))),
    expired: ({ waiter }) =>
      this._settled(waiter, ({ reject }) => reject(new TimedOut("no answer came in time"))),
    update: ({ topic, payload, attachments }) =>
      this._subscriptions.get(topic)?._updated({ payload, attachments }),
    "topic-closed": ({ topic }) => {
      const subscription = this._subscriptions.get(topic);
      this._subscriptions.delete(topic);
      subscription?._finish("closed");
    },
    unsubscribed: ({ topic }) => {
      this._topics.get(topic)?._end("unsubscribed");
      this._topics.delete(topic);
    },
    set: ({ name, value, attachments }) => {
      this.attributes.set(name, { value, attachments });
      return this._serving.onAttribute?.(name, { value, attachments });
    },
    unset: ({ name }) => {
      this.attributes.delete(name);
      return this._serving.onAttribute?.(name, null);
    },
  };

  /**
   * @param {import("./events.js").ResultEvent} result
   * @param {number} count
   * @param {AbortSignal | undefined} signal
   */
  _streamOf(result, count, signal) {
    const aborted = () => stream._drop(signal?.reason);
    const stream = new AttachmentStream(count, this._backlog, (complete) => {
      signal?.removeEventListener("abort", aborted);
      this._streams.delete(result);
      if (!complete) this._machine.dropAttachments(result);
    });
    signal?.addEventListener("abort", aborted);
    this._streams.set(result, stream);
    return stream;
  }

  /**
   * @param {unknown} waiter
   * @param {(waiter: Waiter) => void} settle
   */
  _settled(waiter, settle) {
    settle(/** @type {Waiter} */ (waiter));
    this._reading.look();
    this._lookIdle();
  }

  /** Whoever closes the session waits for this. */
  _lookIdle() {
    if (this._closing && !this._busy) this._idle();
  }

  get _busy() {
    return this._machine.callsPending > 0 || this._machine.callsServed > 0;
  }

  /** The socket is not read, because the program has not taken what arrived. */
  get paused() {
    return this._link.paused;
  }

  /**
   * @param {Error} error
   * @override
   */
  _lost(error) {
    const why = lostBecause(error);
    this._reading.end();
    for (const waiter of this._machine.lost()) /** @type {Waiter} */ (waiter).reject(why);
    for (const stream of [...this._streams.values()]) stream._lost(why);
    this._streams.clear();
    this._unmade.clear();
    for (const topic of this._topics.values()) topic._end("lost");
    this._topics.clear();
    for (const subscription of this._subscriptions.values()) subscription._lost(error);
    this._subscriptions.clear();
    this._idle();
  }

  // ── the peer calls ───────────────────────────────────────────────────────────────────────────

  /**
   * @param {string} _payload
   * @returns {Answering}
   */
  _answering(_payload) {
    const { methods = {}, onCall } = this._serving;
    return (request) => {
      const answer = answerMethod(methods, request);
      if (answer) return answer;
      if (onCall) return onCall(request);
      throw new Refused("not an RPC server", Code.NOT_AN_RPC_SERVER);
    };
  }

  /**
   * @param {{id: string, payload: string, attachments: Attachment[], callback: string | null}} event
   * @param {Answering | undefined} answering
   */
  async _serve({ id, payload, attachments, callback }, answering) {
    try {
      if (this._closing) throw new Refused("the session is closing", Code.UNAVAILABLE);
      if (!answering) throw new Refused("callback not found", Code.CALLBACK_NOT_FOUND);
      const answer = await answering({ session: this, payload, attachments, callback });
      if (this._machine.closed) return;
      const reply = answer instanceof Reply ? answer : new Reply(answer ?? "");
      this._do((machine, bodies) => machine.result(id, reply.payload, bodies), reply.attachments);
    } catch (error) {
      const { closed } = this._machine;
      const text = sendable(errorText(error), this._machine.limits["payload-characters"]);
      if (!closed) this._do((machine) => machine.error(id, text));
      // A session that ended beneath a method is no error of the method.
      if (!(error instanceof Refused || (closed && error instanceof ConnectionClosed))) this._world.report(error);
    }
    this._lookIdle();
  }

  // ── verbs ────────────────────────────────────────────────────────────────────────────────────

  /**
   * Call the peer (UM-09). Rejected with CallFailed (`E`), TimedOut, SessionRefused (`F`),
   * ConnectionClosed, or LimitExceeded (nothing was sent).
   *
   * @param {string} payload
   * @param {CallOptions} [options]
   * @returns {Promise<Answer>}
   */
  call(payload, options = {}) {
    return this._ask(options, (machine, bodies, waiter, deadline) =>
      machine.call(payload, bodies, waiter, deadline, options.streamed),
    );
  }

  /**
   * Call what the peer registered as `callback` (UM-11); otherwise like `call`.
   *
   * @param {string} callback
   * @param {string} argument
   * @param {CallOptions} [options]
   * @returns {Promise<Answer>}
   */
  callback(callback, argument, options = {}) {
    return this._ask(options, (machine, bodies, waiter, deadline) =>
      machine.callback(callback, argument, bodies, waiter, deadline, options.streamed),
    );
  }

  /**
   * @param {CallOptions} options
   * @param {(machine: Machine, bodies: (Uint8Array | Slot)[], waiter: Waiter, deadline: number) => string} verb
   * @returns {Promise<Answer>}
   */
  _ask({ attachments = [], timeout = this._machine.limits["call-seconds"], signal }, verb) {
    return new Promise((resolve, reject) => {
      if (this._closing) throw new ConnectionClosed("the session is closing");
      signal?.throwIfAborted();
      this._link.checkRoom();
      const deadline = this._world.now() + timeout;
      /** @type {Waiter} */
      const waiter = { resolve, reject, signal };
      const number = this._do((machine, bodies) => verb(machine, bodies, waiter, deadline), attachments);
      this._reading.look();
      abortable(waiter, signal, () => {
        this._machine.cancel(number);
        this._settled(waiter, (one) => one.reject(signal?.reason));
      });
    });
  }

  /**
   * Ask the peer to publish to a new topic; its updates go to `subscription`.
   *
   * @param {Subscription} subscription
   * @param {(id: string) => string} request
   * @param {CallOptions} options
   * @returns {Promise<void>} fires when the peer has agreed
   */
  async _subscribe(subscription, request, options) {
    const topic = this._do((machine) => machine.subscribe());
    this._subscriptions.set(topic, subscription);
    subscription._begun(this, topic);
    try {
      const { payload } = await this.call(request(topic), options);
      const stored = Stored.read(payload);
      if (stored) throw new NoSuchMethod(stored.durable);
    } catch (error) {
      this._unsubscribe(topic);
      throw error;
    }
  }

  /** @param {string} topic */
  _unsubscribe(topic) {
    if (this._subscriptions.delete(topic) && this._machine.open)
      this._do((machine) => machine.unsubscribe(topic));
  }

  /**
   * The peer has chosen `id`: publish to the topic that this returns (UM-12). Throws Refused, which a
   * method need not catch: the peer is told that it has given what is no id or is in use, or has more
   * than `topics`.
   *
   * @param {string} id
   */
  openTopic(id) {
    const topic = this._do((machine) => machine.openTopic(id));
    const opened = new Topic(this, topic);
    this._topics.set(topic, opened);
    return opened;
  }

  /**
   * Set an attribute at the peer (UM-15).
   *
   * @param {string} name
   * @param {string} value
   * @param {readonly Sendable[]} [attachments]
   */
  setAttribute(name, value, attachments = []) {
    this._do((machine, bodies) => machine.setAttribute(name, value, bodies), attachments);
  }

  /**
   * Unset an attribute at the peer (UM-16).
   *
   * @param {string} name
   */
  unsetAttribute(name) {
    this._do((machine) => machine.unsetAttribute(name));
  }

  /**
   * Wait for the answers to our calls and for ours to the peer's (within `drain`), then close.
   *
   * @returns {Promise<void>}
   */
  close() {
    this._closed ??= this._close();
    return this._closed;
  }

  async _close() {
    this._closing = true;
    if (this._machine.open && this._busy) {
      const idle = new Promise((resolve) => (this._idle = () => resolve(null)));
      const cancel = this._world.after(this._drainSeconds, this._idle);
      await idle;
      cancel();
    }
    this.abort();
    await this._link.closed;
  }

  /** Close at once. */
  abort() {
    this._link.close();
  }
}
