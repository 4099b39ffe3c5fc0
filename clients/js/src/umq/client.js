/** A UMQ client that reconnects. */

import { ReconnectingClient, RECONNECT_LIMITS } from "../reconnect.js";
import { ConnectionClosed, LimitExceeded } from "../errors.js";
import { splitLimits } from "../limits.js";
import { Backlog } from "../backlog.js";
import { bodiesOf, methodCall, parseAnswer } from "./exchange.js";
import { Machine } from "./machine.js";
import { assignment } from "./sending.js";
import { UmqSession } from "./session.js";
import { Subscription } from "./subscription.js";
import { LIMITS } from "./terms.js";
import { guarded } from "../world.js";
import { base36 } from "./wire.js";

/** @typedef {import("./exchange.js").Answer} Answer */
/** @typedef {import("./exchange.js").Answering} Answering */
/** @typedef {import("./exchange.js").Sendable} Sendable */
/** @typedef {import("./exchange.js").Update} Update */
/** @typedef {import("./session.js").Attribute} Attribute */

/**
 * `safe`: the call may be made twice, so it is repeated when a session ends before its answer.
 *
 * @typedef {import("./session.js").CallOptions & {safe?: boolean}} CallOptions
 */

/** @typedef {Partial<import("./terms.js").UmqLimits & import("../limits.js").Limits<typeof RECONNECT_LIMITS>>} ClientLimits */

/**
 * @typedef {object} LogIn
 * @property {{user: string, password: string}} [login] for a server with `--auth`
 * @property {string | (() => string | Promise<string>)} [hello] what authorises elsewhere; a function
 *   is asked for each session
 * @property {readonly Sendable[]} [helloAttachments]
 */

/**
 * @typedef {import("../reconnect.js").ReconnectOptions
 *   & import("./session.js").Serving
 *   & LogIn
 *   & {limits?: ClientLimits, onOpen?: (session: UmqSession) => unknown}} UmqOptions
 */

/** What engines and tools ask of any object; call methods of such names with `callMethod`. */
const NOT_REMOTE = new Set(["then", "toJSON", ...Object.getOwnPropertyNames(Object.prototype)]);

/** @extends {ReconnectingClient<UmqSession>} */
export class UmqClient extends ReconnectingClient {
  /**
   * A client that has not connected yet: `start` makes it. Throws RangeError for an unknown limit.
   *
   * @param {string | URL} url `ws://…` or `wss://…`
   * @param {UmqOptions} [options]
   */
  constructor(url, options = {}) {
    const { own, shared } = splitLimits(options.limits ?? {}, LIMITS);
    super(url, "umq", options, shared);
    this._umq = options;
    /** @type {Partial<import("./terms.js").UmqLimits>} */
    this._limits = own;
    /** @type {Map<string, Answering>} */
    this._callbacks = new Map();
    this._lastCallback = 0;
    this._backlog = new Backlog(own["backlog-bytes"] ?? LIMITS["backlog-bytes"][0]);
    /** @type {Map<Subscription, (session: UmqSession) => Promise<void>>} */
    this._renewed = new Map();
    /** @type {Map<string, [value: string, attachments: readonly Sendable[]]>} */
    this._attributes = new Map();
    /**
     * The server's methods as functions: `await client.remote.greet("world")`.
     * @type {Record<string, (...args: any[]) => Promise<any>>}
     */
    this.remote = new Proxy(/** @type {any} */ ({}), {
      get: (_, name) =>
        typeof name === "string" && !NOT_REMOTE.has(name)
          ? (/** @type {any[]} */ ...args) => this.callMethod(name, args)
          : undefined,
    });
    void this.closed.then((error) => {
      for (const subscription of [...this._renewed.keys()]) subscription._closed(error);
    });
  }

  /**
   * Connect; rejected with ConnectionClosed or SessionRefused if the first attempt fails.
   *
   * @param {string | URL} url
   * @param {UmqOptions} [options]
   */
  static async connect(url, options = {}) {
    return await ReconnectingClient._connected(new UmqClient(url, options));
  }

  /** The server's attributes in the session that stands. @returns {ReadonlyMap<string, Attribute>} */
  get attributes() {
    return this.session?.attributes ?? new Map();
  }

  /** @override */
  async _prepare() {
    const { hello } = this._umq;
    return typeof hello === "function" ? await hello() : hello;
  }

  /**
   * @param {import("../world.js").Socket} socket
   * @param {string | undefined} said
   * @override
   */
  _session(socket, said) {
    const { login, helloAttachments = [] } = this._umq;
    return new UmqSession(socket, {
      world: this._world,
      limits: this._limits,
      serving: this._umq,
      callbacks: this._callbacks,
      hello: said ?? (login ? `${login.user}:${login.password}` : ""),
      helloAttachments,
      drainSeconds: this._waits.drain,
      backlog: this._backlog,
    });
  }

  /**
   * @param {UmqSession} session
   * @override
   */
  _renew(session) {
    for (const [name, [value, attachments]] of this._attributes)
      guarded(this._world, () => session.setAttribute(name, value, attachments));
    for (const [subscription, ask] of this._renewed)
      ask(session).catch((error) => {
        if (!(error instanceof ConnectionClosed)) subscription._finish("refused", error);
      });
    return this._umq.onOpen?.(session);
  }

  /**
   * Call the server, in the session that stands or in the next one (UM-09).
   *
   * Rejected with CallFailed (the server said no), TimedOut, SessionRefused, ConnectionClosed (the
   * session ended before the answer, or the client is closed) or LimitExceeded.
   *
   * @param {string} payload
   * @param {CallOptions} [options]
   * @returns {Promise<Answer>}
   */
  call(payload, options = {}) {
    return this._inSession(options, (session, left) => session.call(payload, left));
  }

  /**
   * Call what the server registered as `callback` (UM-11); otherwise like `call`.
   *
   * @param {string} callback
   * @param {string} argument
   * @param {CallOptions} [options]
   * @returns {Promise<Answer>}
   */
  callback(callback, argument, options = {}) {
    return this._inSession(options, (session, left) => session.callback(callback, argument, left));
  }

  /**
   * Call the server's method `name` with JSON; fires with its result.
   *
   * It fires with a `Stored` if a stock server has no such method and took the call in. Rejected
   * with RemoteError for errors that the method raises for its callers, NotJson if the answer is
   * none, and otherwise as `call`.
   *
   * @param {string} name
   * @param {readonly unknown[]} [args]
   * @param {CallOptions} [options]
   * @returns {Promise<any>}
   */
  async callMethod(name, args = [], options = {}) {
    const { payload } = await this.call(methodCall(name, args), options);
    return parseAnswer(payload);
  }

  /**
   * @template T
   * @param {CallOptions} options
   * @param {(session: UmqSession, options: CallOptions) => Promise<T>} ask
   */
  _inSession({ timeout, safe, ...options }, ask) {
    const seconds = timeout ?? this._limits["call-seconds"] ?? LIMITS["call-seconds"][0];
    return this.perform((session, left) => ask(session, { ...options, timeout: left }), {
      seconds,
      safe,
      signal: options.signal,
    });
  }

  /**
   * Let the server call `answering` (UM-11); returns the id to tell it. The id is the same in every
   * session; the hook `onOpen` is the place to tell it to the server again.
   *
   * @param {Answering} answering
   */
  registerCallback(answering) {
    if (typeof answering !== "function") throw new TypeError("a callback is a function");
    const most = this._limits.callbacks ?? LIMITS.callbacks[0];
    if (this._callbacks.size >= most) throw new LimitExceeded(`${most} callbacks are registered already`);
    const id = base36(++this._lastCallback);
    this._callbacks.set(id, answering);
    this.session?._machine.registerCallback(id);
    return id;
  }

  /**
   * Calls of this callback are refused from now on.
   *
   * @param {string} id
   */
  unregisterCallback(id) {
    this._callbacks.delete(id);
    this.session?._machine.unregisterCallback(id);
  }

  /**
   * Subscribe to a topic (UM-12), now and in every session to come.
   *
   * `request(id)` returns the payload of the call that asks the server to publish to topic `id`; it
   * is asked anew in each session. Updates go to `hook`, or wait for `for await (const update of
   * subscription)`. When a hook returns a promise, its update counts as taken when that is settled.
   * `signal` gives the request up; `unsubscribe` ends a subscription that was made. Fires when the server has agreed; rejected as `call` is, and with NoSuchMethod.
   *
   * @param {(id: string) => string} request
   * @param {import("./subscription.js").UpdateHook | null} [hook]
   * @param {CallOptions} [options]
   * @returns {Promise<Subscription>}
   */
  async subscribe(request, hook = null, options = {}) {
    const subscription = new Subscription(hook, {
      forget: (one) => this._renewed.delete(one),
      backlog: this._backlog,
      report: this._world.report,
    });
    const { safe, signal, ...given } = options; // neither belongs to the requests of later sessions
    try {
      await this._inSession(options, async (session, left) => {
        this._renewed.set(subscription, (next) => next._subscribe(subscription, request, given));
        await session._subscribe(subscription, request, left);
      });
    } catch (error) {
      subscription._finish("refused", error instanceof Error ? error : null);
      throw error;
    }
    return subscription;
  }

  /**
   * Set an attribute at the server (UM-15), now and in every session to come. TypeError for what
   * cannot be sent, such as a name with `=`, and LimitExceeded; then no session has it.
   *
   * @param {string} name
   * @param {string} value
   * @param {readonly Sendable[]} [attachments]
   */
  setAttribute(name, value, attachments = []) {
    if (this.state === "closed") throw new ConnectionClosed("the client was closed");
    const payload = assignment(name, value);
    const bodies = bodiesOf(attachments, (_, bytes) => void bytes.catch(() => {}), () => {});
    new Machine({ limits: this._limits }).check(payload, bodies);
    if (this.session?._machine.open) this.session.setAttribute(name, value, attachments);
    this._attributes.set(name, [value, attachments]);
  }

  /**
   * Unset an attribute at the server (UM-16), now and in every session to come.
   *
   * @param {string} name
   */
  unsetAttribute(name) {
    this._attributes.delete(name);
    if (this.session?._machine.open) this.session.unsetAttribute(name);
  }
}
