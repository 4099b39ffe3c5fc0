/** A client that reconnects: it keeps one session with a server, and the next one after that. */

import { ConnectionClosed, LimitExceeded, Refused, SessionRefused, TimedOut } from "./errors.js";
import { limitsOf } from "./limits.js";
import { Hopeless, guarded, realWorld } from "./world.js";

/** @typedef {import("./world.js").World} World */

/**
 * `idle` before `start`, `down` while it waits to try again, `closed` for good.
 *
 * @typedef {"idle" | "connecting" | "open" | "down" | "closed"} ClientState
 */

/** How a client reconnects; the option `limits` changes these by name. */
export const RECONNECT_LIMITS = /** @type {const} */ ({
  "socket-seconds": [10, "s", "until the socket is open"],
  "retry-first": [1, "s", "the wait after a loss; it doubles, and half of it is left to chance"],
  "retry-most": [60, "s", "the longest of these waits"],
  "refused-first": [2, "s", "the wait after a refusal, likewise"],
  "refused-most": [300, "s", "the longest of these"],
  "steady-seconds": [10, "s", "after a session of this length the waits begin anew"],
  "waiting-verbs": [10_000, "calls", "that wait for a session"],
  drain: [30, "s", "close() waits so long for what is on its way"],
});

/**
 * @typedef {object} ReconnectOptions
 * @property {boolean} [reconnect] false: the client is closed when its first session ends
 * @property {boolean} [stopWhenRefused] true: a refusal of the server closes the client
 * @property {(state: ClientState, error: Error | null) => unknown} [onState] is told each state, and
 *   what ended the session before it
 * @property {(error: unknown) => void} [onHookError] is told what hooks and methods of the program
 *   throw; by default `reportError` in pages and `console.error` elsewhere
 * @property {AbortSignal} [signal] closes the client at once, also while it connects
 * @property {import("./world.js").SocketClass} [WebSocket] the class of sockets; by default `ws` where
 *   it is installed with Node, WebSocketStream where a browser has it, and WebSocket elsewhere
 * @property {World} [world] for tests: clock, timers, chance and sockets
 */

/**
 * What a session has to have.
 *
 * @typedef {object} Session
 * @property {Promise<unknown>} established fires when it stands
 * @property {Promise<Error>} ended fires when it does no longer, with the reason
 * @property {() => Promise<void>} close end it in order
 * @property {() => void} abort end it at once
 */

/**
 * @template {Session} S
 * @typedef {object} PendingCall
 * @property {(session: S, seconds: number) => Promise<any>} ask
 * @property {number} deadline
 * @property {boolean} safe
 * @property {(value: any) => void} resolve
 * @property {(error: unknown) => void} reject
 * @property {() => void} forget cancels its timer
 */

/** @template {Session} S */
export class ReconnectingClient {
  /**
   * @param {string | URL} url
   * @param {string} protocol the WebSocket subprotocol
   * @param {ReconnectOptions} options
   * @param {Partial<import("./limits.js").Limits<typeof RECONNECT_LIMITS>>} limits
   */
  constructor(url, protocol, options, limits) {
    this.url = String(url);
    this._protocol = protocol;
    this._options = options;
    this._waits = limitsOf(RECONNECT_LIMITS, limits);
    /** @type {World} */
    this._world = options.world ?? realWorld(options.WebSocket, options.onHookError);
    /** @type {ClientState} */
    this.state = "idle";
    /** What ended the last session, or kept the next one from standing. @type {Error | null} */
    this.error = null;
    /** The session that stands, or null. @type {S | null} */
    this.session = null;
    /** @type {S | null} The one that is being established. */
    this._next = null;
    this._attempts = 0;
    this._refusals = 0;
    /** @type {Set<PendingCall<S>>} */
    this._pendingCalls = new Set();
    /** @type {() => void} */
    this._cancelRetry = () => {};
    /** Ends the attempt to open a socket. */
    this._opening = new AbortController();
    /** @type {Promise<void> | null} */
    this._closing = null;
    /** @type {(error: Error | null) => void} */
    this._ended = () => {};
    /**
     * Fires when the client is closed for good, with the error that did it, or null.
     * @type {Promise<Error | null>}
     */
    this.closed = new Promise((resolve) => (this._ended = resolve));
    if (options.signal) this._obey(options.signal);
  }

  /** @param {AbortSignal} signal */
  _obey(signal) {
    const aborted = () => {
      const { reason } = signal;
      const { session } = this;
      this._stop(reason instanceof Error ? reason : new ConnectionClosed(String(reason)));
      session?.abort();
    };
    if (signal.aborted) {
      aborted();
      return;
    }
    signal.addEventListener("abort", aborted);
    void this.closed.then(() => signal.removeEventListener("abort", aborted));
  }

  /**
   * What a session needs that is not here at once. What it throws is one attempt that failed.
   *
   * @returns {Promise<any>}
   */
  async _prepare() {}

  /**
   * Make a session on an open socket. What this throws, the program has asked for what cannot be.
   *
   * @param {import("./world.js").Socket} _socket
   * @param {any} _prepared
   * @returns {S}
   */
  _session(_socket, _prepared) {
    throw new TypeError("a subclass makes the sessions");
  }

  /**
   * A session stands: renew what belongs to it. Called before anything that waits is sent.
   *
   * @param {S} _session
   * @returns {unknown} what the program's hook for this returned
   */
  _renew(_session) {
    return undefined;
  }

  /** Begin to connect, and reconnect from then on; fires when the first session stands. */
  async start() {
    if (this._isClosed()) throw this._closedError();
    if (this.state !== "idle") throw new TypeError("a client is started once");
    void this._connect();
    await this.perform(async () => {}, { seconds: Infinity });
  }

  /**
   * @template {ReconnectingClient<any>} C
   * @param {C} client
   * @returns {Promise<C>} fires when the first attempt succeeds; rejected, and closed, if it fails
   */
  static async _connected(client) {
    const failure = await client._connect();
    if (failure) {
      client._stop(failure);
      throw failure;
    }
    return client;
  }

  /** @param {ClientState} state */
  _enter(state) {
    if (this.state === state) return;
    this.state = state;
    guarded(this._world, () => this._options.onState?.(state, this.error));
  }

  /** One attempt; returns what went wrong, or null. */
  async _connect() {
    if (this._isClosed()) return this._closedError();
    this._enter("connecting");
    try {
      const prepared = await this._prepare();
      if (this._isClosed()) return this._closedError();
      const { url, _protocol, _waits, _opening } = this;
      const socket = await this._world.open(url, _protocol, _waits["socket-seconds"], _opening.signal);
      if (this._isClosed()) {
        socket.close(1000);
        return this._closedError();
      }
      const session = this._begin(socket, prepared);
      this._next = session;
      await session.established;
      this._next = null;
      if (this._isClosed()) return this._closedError();
      this._stands(session);
      return null;
    } catch (caught) {
      this._next = null;
      if (this._isClosed()) return this._closedError();
      if (caught instanceof Hopeless) {
        this._stop(caught.cause);
        return caught.cause;
      }
      const error = caught instanceof Error ? caught : new ConnectionClosed(String(caught));
      this._down(error);
      return error;
    }
  }

  /**
   * @param {import("./world.js").Socket} socket
   * @param {any} prepared
   */
  _begin(socket, prepared) {
    try {
      return this._session(socket, prepared);
    } catch (error) {
      socket.close(1000);
      throw new Hopeless(error);
    }
  }

  _isClosed() {
    return this.state === "closed";
  }

  _closedError() {
    return this.error ?? new ConnectionClosed("the client was closed");
  }

  /** @param {S} session */
  _stands(session) {
    const since = this._world.now();
    this.session = session;
    this._refusals = 0;
    this.error = null;
    session.ended.then((error) => {
      if (this.session !== session) return;
      this.session = null;
      if (this._world.now() - since >= this._waits["steady-seconds"]) this._attempts = 0;
      if (!this._isClosed()) this._down(error);
    });
    guarded(this._world, () => this._renew(session));
    this._enter("open");
    for (const call of [...this._pendingCalls]) this._run(call);
  }

  /** @param {Error} error */
  _down(error) {
    const refused = error instanceof SessionRefused;
    this.error = error;
    if (this._options.reconnect === false || (refused && this._options.stopWhenRefused)) {
      this._stop(error);
      return;
    }
    const [first, most] = refused ? ["refused-first", "refused-most"] : ["retry-first", "retry-most"];
    const count = refused ? this._refusals++ : this._attempts++;
    const waits = /** @type {Record<string, number>} */ (this._waits);
    const seconds = Math.min(waits[first] * 2 ** count, waits[most]);
    this._cancelRetry = this._world.after(seconds * (0.5 + this._world.random() / 2), () => {
      void this._connect();
    });
    this._enter("down");
  }

  /** @param {Error | null} error */
  _stop(error) {
    if (this._isClosed()) return;
    this.error = error;
    this._cancelRetry();
    this._opening.abort();
    this._enter("closed");
    for (const call of [...this._pendingCalls]) this._fail(call, this._closedError());
    this._next?.abort();
    this._ended(error);
  }

  /**
   * Close the client: what is on its way is finished (within the limit `drain`), what waits for a
   * session fails with ConnectionClosed. Fires when the connection is closed; never rejected. Who
   * calls it again waits for the same end.
   *
   * @returns {Promise<void>}
   */
  close() {
    this._closing ??= this._close();
    return this._closing;
  }

  async _close() {
    const session = this.session ?? this._next;
    this._stop(null);
    if (session) await session.close();
  }

  // ── calls ──────────────────────────────────────────────────────────────────────────────────

  /**
   * Do it in the session that stands, or in the next one.
   *
   * `safe`: it may be done twice, so it is repeated when a session ends before its answer.
   *
   * @template T
   * @param {(session: S, seconds: number) => Promise<T>} ask with the seconds that are left
   * @param {{seconds: number, safe?: boolean, signal?: AbortSignal}} options
   * @returns {Promise<T>}
   */
  perform(ask, { seconds, safe = false, signal }) {
    if (typeof seconds !== "number" || !(seconds >= 0))
      return Promise.reject(new TypeError("a timeout is a number of seconds that is not negative"));
    if (this._isClosed()) return Promise.reject(this._closedError());
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (!this.session && this._pendingCalls.size >= this._waits["waiting-verbs"])
      return Promise.reject(new LimitExceeded("too many calls wait for a session"));
    const promise = new Promise((resolve, reject) => {
      /** @type {PendingCall<S>} */
      const call = { ask, deadline: this._world.now() + seconds, safe, resolve, reject, forget() {} };
      if (signal) {
        const aborted = () => this._fail(call, signal.reason);
        signal.addEventListener("abort", aborted, { once: true });
        const settled = () => signal.removeEventListener("abort", aborted);
        call.resolve = (value) => (settled(), resolve(value));
        call.reject = (error) => (settled(), reject(error));
      }
      if (this.session) this._run(call);
      else this._wait(call);
    });
    return promise;
  }

  /** @param {PendingCall<S>} call */
  _wait(call) {
    const left = call.deadline - this._world.now();
    this._pendingCalls.add(call);
    if (left < Infinity)
      call.forget = this._world.after(Math.max(0, left), () =>
        this._fail(call, new TimedOut("no session came in time")),
      );
  }

  /** @param {PendingCall<S>} call */
  _run(call) {
    const session = /** @type {S} */ (this.session);
    this._pendingCalls.delete(call);
    call.forget();
    let asked;
    try {
      asked = call.ask(session, call.deadline - this._world.now());
    } catch (error) {
      call.reject(error);
      return;
    }
    asked.then(call.resolve, (error) => {
      const again = call.safe && error instanceof ConnectionClosed && !(error instanceof Refused);
      if (!again || this._isClosed()) call.reject(error);
      else if (this.session && this.session !== session) this._run(call);
      else this._wait(call);
    });
  }

  /**
   * @param {PendingCall<S>} call
   * @param {unknown} error
   */
  _fail(call, error) {
    this._pendingCalls.delete(call);
    call.forget();
    call.reject(error);
  }
}
