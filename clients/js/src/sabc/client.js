/** An sABC client that reconnects. */

import { ReconnectingClient, RECONNECT_LIMITS } from "../reconnect.js";
import { ConnectionClosed } from "../errors.js";
import { splitLimits } from "../limits.js";
import { SabcSession } from "./session.js";
import { LIMITS } from "./terms.js";

/** @typedef {import("./exchange.js").Headers} Headers */
/** @typedef {import("./exchange.js").Message} Message */
/** @typedef {import("./exchange.js").Bytes} Bytes */
/** @typedef {import("./session.js").Body} Body */

/**
 * `safe`: the request may be made twice, so it is repeated when a session ends before its answer.
 *
 * @typedef {import("./session.js").RequestOptions & {safe?: boolean}} RequestOptions
 */

/** @typedef {Partial<import("./terms.js").SabcLimits & import("../limits.js").Limits<typeof RECONNECT_LIMITS>>} ClientLimits */

/**
 * @typedef {object} Identity
 * @property {string} clientId
 * @property {string} [passcode]
 * @property {Headers} [headers] of CONNECT
 */

/**
 * @typedef {import("../reconnect.js").ReconnectOptions
 *   & import("./session.js").Serving
 *   & Identity
 *   & {limits?: ClientLimits, onOpen?: (session: SabcSession) => unknown}} SabcOptions
 */

/** @extends {ReconnectingClient<SabcSession>} */
export class SabcClient extends ReconnectingClient {
  /**
   * A client that has not connected yet: `start` makes it. Throws RangeError for an unknown limit.
   *
   * @param {string | URL} url `ws://…` or `wss://…`
   * @param {SabcOptions} options
   */
  constructor(url, options) {
    const { own, shared } = splitLimits(options.limits ?? {}, LIMITS);
    super(url, "sabc", options, shared);
    this._sabc = options;
    /** @type {Partial<import("./terms.js").SabcLimits>} */
    this._limits = own;
  }

  /**
   * Connect; rejected with ConnectionClosed or SessionRefused if the first attempt fails.
   *
   * @param {string | URL} url
   * @param {SabcOptions} options
   */
  static async connect(url, options) {
    return await ReconnectingClient._connected(new SabcClient(url, options));
  }

  /**
   * @param {import("../world.js").Socket} socket
   * @override
   */
  _session(socket) {
    const { clientId, passcode = null, headers = {} } = this._sabc;
    return new SabcSession(socket, {
      world: this._world,
      limits: this._limits,
      serving: this._sabc,
      clientId,
      passcode,
      headers,
      drainSeconds: this._waits.drain,
    });
  }

  /**
   * @param {SabcSession} session
   * @override
   */
  _renew(session) {
    return this._sabc.onOpen?.(session);
  }

  /**
   * Send a message that wants an answer, in the session that stands or in the next one (SA-16). With
   * a queue behind the server, an answer says that the message is on disk.
   *
   * A body is text, bytes, or an async iterable of these whose pieces are sent as they come.
   * Rejected with Refused (the server answered ERROR, `code` says which; "truncated" if it took only
   * a part), TimedOut, ConnectionClosed, LimitExceeded, or TypeError for headers and bodies that
   * cannot be sent.
   *
   * @param {Body} body
   * @param {RequestOptions} [options]
   * @returns {Promise<Message>}
   */
  request(body, { timeout, safe = false, ...options } = {}) {
    const seconds = timeout ?? this._limits["response-seconds"] ?? LIMITS["response-seconds"][0];
    if (safe && typeof body === "object" && Symbol.asyncIterator in body)
      return Promise.reject(new TypeError("a body in pieces cannot be sent twice"));
    return this.perform((session, left) => session.request(body, { ...options, timeout: left }), {
      seconds,
      safe,
      signal: options.signal,
    });
  }

  /**
   * Send a message that wants no answer (SA-17), in the session that stands or in the next one; fires
   * when it is handed to the socket, which promises nothing.
   *
   * @param {Bytes} body
   * @param {{headers?: Headers, timeout?: number}} [options]
   * @returns {Promise<void>}
   */
  sendOnly(body, { headers, timeout } = {}) {
    const seconds = timeout ?? this._limits["response-seconds"] ?? LIMITS["response-seconds"][0];
    return this.perform(async (session) => session.sendOnly(body, { headers }), { seconds });
  }

  /**
   * Tell the server of an error that answers nothing (SA-24); throws ConnectionClosed without a
   * session.
   *
   * @param {number | string} code
   * @param {string} text
   * @param {{headers?: Headers}} [options]
   */
  sendError(code, text, options = {}) {
    if (!this.session) throw new ConnectionClosed("there is no session");
    this.session.sendError(code, text, options);
  }
}
