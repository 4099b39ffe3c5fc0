/** One sABC session on one socket: the machine's events become promises and calls of hooks. */

import { ConnectionClosed, LimitExceeded, Refused, SessionRefused, TimedOut } from "../errors.js";
import { Reading } from "../reading.js";
import { LinkedSession, abortable, lostBecause } from "../session.js";
import { Backlog, isPromise } from "../backlog.js";
import { Message, Reply, bytesOf } from "./exchange.js";
import { Machine } from "./machine.js";

/** @typedef {import("./exchange.js").Headers} Headers */
/** @typedef {import("./exchange.js").Bytes} Bytes */
/** @typedef {import("./events.js").SabcEvent} SabcEvent */

/** @typedef {string | Uint8Array | ArrayBuffer | ArrayBufferView | Reply | void | null | undefined} Answered */

/**
 * What the application does for the server.
 *
 * @typedef {object} Serving
 * @property {(message: Message) => Answered | Promise<Answered>} [onRequest] answers a request of the
 *   server: with a body, a Reply, or nothing (an acknowledgement); a Refused that it throws is told
 *   to the server, any other error is 500 there
 * @property {(message: Message) => unknown} [onMessage] is given messages that want no answer; when it
 *   returns a promise, its message counts as taken when that is settled
 * @property {(error: Refused) => unknown} [onError] is told errors of the server that answer nothing
 */

/**
 * @typedef {object} RequestOptions
 * @property {Headers} [headers]
 * @property {number} [timeout] seconds for all of it; by default the limit `response-seconds`
 * @property {AbortSignal} [signal] gives the request up
 */

/** @typedef {Bytes | AsyncIterable<Bytes>} Body in pieces: each is sent when it is there */

/**
 * @typedef {object} Waiter
 * @property {(message: Message) => void} resolve
 * @property {(error: unknown) => void} reject
 * @property {import("./outgoing.js").Outgoing} [outgoing] a body that comes in pieces
 */

/**
 * One session; {@link SabcClient} makes a new one each time it reconnects.
 *
 * @extends {LinkedSession<Machine>}
 */
export class SabcSession extends LinkedSession {
  /**
   * @param {import("../world.js").Socket} socket an open one
   * @param {object} options
   * @param {import("../world.js").World} options.world
   * @param {Partial<import("./terms.js").SabcLimits>} options.limits
   * @param {Serving} options.serving
   * @param {string} options.clientId
   * @param {string | null} options.passcode
   * @param {Headers} options.headers
   * @param {number} options.drainSeconds
   */
  constructor(socket, { world, limits, serving, clientId, passcode, headers, drainSeconds }) {
    super(socket, new Machine({ limits, now: world.now() }), world);
    this._serving = serving;
    this._drainSeconds = drainSeconds;
    /** When the server ends the session at the latest, or null. @type {Date | null} */
    this.expires = null;
    /** Messages that the program works on, and (by themselves) requests. */
    this._backlog = new Backlog(this._machine.limits["backlog-bytes"]);
    this._reading = new Reading(this._backlog, this._link, world, () => this._machine.outstanding > 0);
    this._requests = new Backlog(this._machine.limits["backlog-bytes"]);
    /** Messages are being refused, and the program has been told so. */
    this._refusing = false;
    /** @type {Promise<void> | null} */
    this._closed = null;
    /** What the server said with CONNECTED. @type {Headers} */
    this.headers = {};
    this._do((machine) => machine.connect(clientId, passcode, headers));
  }

  /**
   * Let the machine do something now, and send what it says.
   *
   * @template T
   * @param {(machine: Machine) => T} verb
   */
  _do(verb) {
    this._machine.advanceClock(this._world.now());
    try {
      return verb(this._machine);
    } finally {
      this._link.settle();
    }
  }

  // ── events ───────────────────────────────────────────────────────────────────────────────────

  /** @type {{[type in SabcEvent["type"]]: (event: any) => unknown}} */
  _on = {
    granted: ({ expires, headers }) => {
      this.expires = expires;
      this.headers = headers;
      this._stands();
      this._reading.begin();
    },
    refused: ({ code, text }) => {
      this._link.setCloseReason(new SessionRefused(text, code));
      this._link.close();
    },
    request: (event) => this._serve(new Message(event)),
    "send-only": (event) => this._heard(new Message(event)),
    response: (event) => this._settled(event.waiter, (one) => one.resolve(new Message(event))),
    failed: ({ waiter, code, text }) => this._failed(waiter, new Refused(text, code)),
    expired: ({ waiter }) => this._failed(waiter, new TimedOut("no answer came in time")),
    error: ({ code, body }) => this._serving.onError?.(new Refused(new TextDecoder().decode(body), code)),
    "frame-refused": () => {},
    "frame-discarded": () => {},
    abandoned: () => {},
    disconnecting: () => this._link.setCloseReason(new ConnectionClosed("the server has ended the session")),
    "drain-timed-out": () => {},
    fault: ({ fault }) => this._link.setCloseReason(fault),
  };

  /**
   * @param {Error} error
   * @override
   */
  _lost(error) {
    const why = lostBecause(error);
    this._reading.end();
    for (const waiter of this._machine.lost()) /** @type {Waiter} */ (waiter).reject(why);
  }

  /**
   * @param {Waiter} waiter
   * @param {(waiter: Waiter) => void} settle
   */
  _settled(waiter, settle) {
    settle(waiter);
    this._reading.look();
  }

  /**
   * There will be no answer: the rest of a body is not sent.
   *
   * @param {Waiter} waiter
   * @param {unknown} error
   */
  _failed(waiter, error) {
    const { outgoing } = waiter;
    if (outgoing) this._do(() => outgoing.abort());
    this._settled(waiter, ({ reject }) => reject(error));
  }

  /** The socket is not read, because the program has not taken what arrived. */
  get paused() {
    return this._link.paused;
  }

  /** @param {Message} message that wants no answer */
  _heard(message) {
    const { onMessage } = this._serving;
    if (!onMessage) return;
    const { length } = message.body;
    if (this._backlog.bytes + length > this._backlog.most) {
      this._do((machine) => machine.refuseOriginal(message.id, 429, "too many messages are being worked on"));
      if (!this._refusing)
        this._world.report(new LimitExceeded("messages are refused: too many are being worked on (the limit backlog-bytes)"));
      this._refusing = true;
      return;
    }
    this._refusing = false;
    const done = onMessage(message);
    if (!isPromise(done)) return;
    this._backlog.count(length, 1);
    const over = () => this._backlog.count(-length, -1);
    done.then(over, (error) => (over(), this._world.report(error)));
  }

  /** @param {Message} message */
  async _serve(message) {
    const { id, body: { length } } = message;
    this._requests.count(length);
    try {
      if (this._requests.tooMuch) throw new Refused("too many requests are being worked on", 429);
      if (!this._serving.onRequest) throw new Refused("this client answers no requests", "501");
      const answer = await this._serving.onRequest(message);
      const { body, headers } = answer instanceof Reply ? answer : new Reply(answer ?? "");
      this._do((machine) => machine.answer(id, bytesOf(body), headers));
    } catch (error) {
      this._refuse(id, error);
    }
    this._requests.count(-length);
  }

  /**
   * Answer a request with an error; what no Refused says is for the program alone.
   *
   * @param {string} id
   * @param {unknown} error
   */
  _refuse(id, error) {
    if (error instanceof Refused) {
      const { code, message } = error;
      try {
        this._do((machine) => machine.refuse(id, code ?? 500, message));
        return;
      } catch (odd) {
        error = odd; // a code that no header can carry
      }
    }
    // A session that ended beneath a hook is no error of the hook.
    const beneath = this._machine.closed && error instanceof ConnectionClosed;
    this._do((machine) => machine.refuse(id, 500, "internal error"));
    if (!beneath) this._world.report(error);
  }

  // ── verbs ────────────────────────────────────────────────────────────────────────────────────

  /**
   * Send a message that wants an answer (SA-16); see {@link SabcClient.request}.
   *
   * @param {Body} body
   * @param {RequestOptions} [options]
   * @returns {Promise<Message>}
   */
  request(body, { headers = {}, timeout = this._machine.limits["response-seconds"], signal } = {}) {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      this._link.checkRoom();
      const deadline = this._world.now() + timeout;
      /** @type {Waiter} */
      const waiter = { resolve, reject };
      const pieces = isPieces(body) ? body : null;
      const id = this._do((machine) => {
        if (!pieces) return machine.request(bytesOf(body), waiter, deadline, headers);
        waiter.outgoing = machine.openRequest(waiter, deadline, headers);
        void this._stream(waiter.outgoing, pieces, (error) => this._failed(waiter, error));
        return /** @type {string} */ (waiter.outgoing.id);
      });
      this._reading.look();
      abortable(waiter, signal, () => {
        this._machine.forget(id);
        this._failed(waiter, signal?.reason);
      });
    });
  }

  /**
   * @param {import("./outgoing.js").Outgoing} outgoing
   * @param {AsyncIterable<Bytes>} pieces
   * @param {(error: unknown) => void} failed
   */
  async _stream(outgoing, pieces, failed) {
    try {
      for await (const piece of pieces) {
        await this._link.room();
        if (this._machine.closed || outgoing.finished) return;
        this._do(() => outgoing.write(bytesOf(piece)));
      }
      this._do(() => outgoing.finish());
    } catch (error) {
      failed(error);
    }
  }

  /**
   * Send a message that wants no answer (SA-17).
   *
   * @param {Bytes} body
   * @param {{headers?: Headers}} [options]
   */
  sendOnly(body, { headers = {} } = {}) {
    this._link.checkRoom();
    this._do((machine) => machine.sendOnly(bytesOf(body), headers));
  }

  /**
   * Tell the server of an error that answers nothing (SA-24).
   *
   * @param {number | string} code
   * @param {string} text
   * @param {{headers?: Headers}} [options]
   */
  sendError(code, text, { headers = {} } = {}) {
    this._do((machine) => machine.sendError(code, text, headers));
  }

  /**
   * Ask the server to answer what it has and to close (SA-12); fires when it has.
   *
   * @returns {Promise<void>}
   */
  close() {
    this._closed ??= this._close();
    return this._closed;
  }

  async _close() {
    this._reading.end(); // what is on its way may have to come before the end
    if (this._machine.open) this._do((machine) => machine.disconnect(this._drainSeconds));
    else if (this._machine.state !== "draining") this.abort();
    await this._link.closed;
  }

  /** Close at once. */
  abort() {
    this._do((machine) => machine.stop());
  }
}

/**
 * @param {Body} body
 * @returns {body is AsyncIterable<Bytes>}
 */
function isPieces(body) {
  return typeof body === "object" && body !== null && Symbol.asyncIterator in body;
}
