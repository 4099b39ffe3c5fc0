/** One sABC session on one socket: the machine's events become promises and calls of hooks. */

import { ConnectionClosed, Refused, SessionRefused, TimedOut } from "../errors.js";
import { LinkedSession, abortable, lostBecause } from "../session.js";
import { Message, Reply, octetsOf } from "./exchange.js";
import { Machine } from "./machine.js";

/** @typedef {import("./exchange.js").Headers} Headers */
/** @typedef {import("./exchange.js").Octets} Octets */
/** @typedef {import("./events.js").SabcEvent} SabcEvent */

/** @typedef {string | Uint8Array | ArrayBuffer | ArrayBufferView | Reply | void | null | undefined} Answered */

/**
 * What the application does for the server.
 *
 * @typedef {object} Serving
 * @property {(message: Message) => Answered | Promise<Answered>} [onRequest] answers a request of the
 *   server: with a body, a Reply, or nothing (an acknowledgement); a Refused that it throws is told
 *   to the server, any other error is 500 there
 * @property {(message: Message) => void} [onMessage] is given messages that want no answer
 * @property {(error: Refused) => void} [onError] is told errors of the server that answer nothing
 */

/**
 * @typedef {object} RequestOptions
 * @property {Headers} [headers]
 * @property {number} [timeout] seconds for all of it; by default the limit `response-seconds`
 * @property {AbortSignal} [signal] gives the request up
 */

/** @typedef {Octets | AsyncIterable<Octets>} Body in pieces: each is sent when it is there */

/** @typedef {{resolve: (message: Message) => void, reject: (error: unknown) => void}} Waiter */

/**
 * One session; {@link SabcClient} makes a new one each time it comes back.
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
   */
  constructor(socket, { world, limits, serving, clientId, passcode, headers }) {
    super(socket, new Machine({ limits, now: world.now() }), world);
    this._serving = serving;
    /** When the server ends the session at the latest, or null. @type {Date | null} */
    this.expires = null;
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

  /** @type {{[type in SabcEvent["type"]]: (event: any) => void}} */
  _on = {
    granted: ({ expires, headers }) => {
      this.expires = expires;
      this.headers = headers;
      this._stands();
    },
    refused: ({ code, text }) => {
      this._link.because(new SessionRefused(text, code));
      this._link.close();
    },
    request: (event) => this._serve(new Message(event)),
    "send-only": (event) => this._serving.onMessage?.(new Message(event)),
    response: (event) => event.waiter.resolve(new Message(event)),
    failed: ({ waiter, code, text }) => waiter.reject(new Refused(text, code)),
    expired: ({ waiter }) => waiter.reject(new TimedOut("no answer came in time")),
    error: ({ code, body }) => this._serving.onError?.(new Refused(new TextDecoder().decode(body), code)),
    "frame-refused": () => {},
    "frame-discarded": () => {},
    abandoned: () => {},
    disconnecting: () => this._link.because(new ConnectionClosed("the server has ended the session")),
    "drain-timed-out": () => {},
    fault: ({ fault }) => this._link.because(fault),
  };

  /**
   * @param {Error} error
   * @override
   */
  _lost(error) {
    const why = lostBecause(error);
    for (const waiter of this._machine.lost()) /** @type {Waiter} */ (waiter).reject(why);
  }

  /** @param {Message} message */
  async _serve(message) {
    const { id } = message;
    try {
      if (!this._serving.onRequest) throw new Refused("this client answers no requests", "501");
      const answer = await this._serving.onRequest(message);
      const { body, headers } = answer instanceof Reply ? answer : new Reply(answer ?? "");
      this._do((machine) => machine.answer(id, octetsOf(body), headers));
    } catch (error) {
      const refused = error instanceof Refused;
      const code = (refused ? error.code : null) ?? 500;
      this._do((machine) => machine.refuse(id, code, refused ? error.message : "internal error"));
      if (!refused) this._world.report(error);
    }
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
        if (!pieces) return machine.request(octetsOf(body), waiter, deadline, headers);
        const outgoing = machine.openRequest(waiter, deadline, headers);
        this._stream(outgoing, pieces, (error) => waiter.reject(error));
        return /** @type {string} */ (outgoing.id);
      });
      abortable(waiter, signal, () => {
        this._machine.forget(id);
        waiter.reject(signal?.reason);
      });
    });
  }

  /**
   * @param {import("./outgoing.js").Outgoing} outgoing
   * @param {AsyncIterable<Octets>} pieces
   * @param {(error: unknown) => void} failed
   */
  async _stream(outgoing, pieces, failed) {
    try {
      for await (const piece of pieces) {
        await this._link.room();
        if (this._machine.closed) return;
        this._do(() => outgoing.write(octetsOf(piece)));
      }
      this._do(() => outgoing.finish());
    } catch (error) {
      this._do(() => outgoing.abort());
      failed(error);
    }
  }

  /**
   * Send a message that wants no answer (SA-17).
   *
   * @param {Octets} body
   * @param {{headers?: Headers}} [options]
   */
  sendOnly(body, { headers = {} } = {}) {
    this._link.checkRoom();
    this._do((machine) => machine.sendOnly(octetsOf(body), headers));
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

  /** Ask the server to answer what it has and to close (SA-12); fires when it has. */
  async close() {
    if (this._machine.open) this._do((machine) => machine.disconnect());
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
 * @returns {body is AsyncIterable<Octets>}
 */
function isPieces(body) {
  return typeof body === "object" && body !== null && Symbol.asyncIterator in body;
}
