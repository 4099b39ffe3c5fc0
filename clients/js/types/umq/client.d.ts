/** @extends {Comeback<UmqSession>} */
export class UmqClient extends Comeback<UmqSession> {
    /**
     * Connect; rejected with ConnectionClosed or SessionRefused if the first attempt fails.
     *
     * @param {string | URL} url
     * @param {UmqOptions} [options]
     */
    static connect(url: string | URL, options?: UmqOptions): Promise<UmqClient>;
    /**
     * A client that has not connected yet: `start` makes it. Throws RangeError for an unknown limit.
     *
     * @param {string | URL} url `ws://…` or `wss://…`
     * @param {UmqOptions} [options]
     */
    constructor(url: string | URL, options?: UmqOptions);
    _umq: UmqOptions;
    /** @type {Partial<import("./terms.js").UmqLimits>} */
    _limits: Partial<import("./terms.js").UmqLimits>;
    /** @type {Map<string, Answering>} */
    _callbacks: Map<string, Answering>;
    _lastCallback: number;
    _unread: Unread;
    /** @type {Map<Subscription, (session: UmqSession) => Promise<void>>} */
    _renewed: Map<Subscription, (session: UmqSession) => Promise<void>>;
    /** @type {Map<string, [value: string, attachments: readonly Sendable[]]>} */
    _attributes: Map<string, [value: string, attachments: readonly Sendable[]]>;
    /**
     * The server's methods as functions: `await client.remote.greet("world")`.
     * @type {Record<string, (...args: any[]) => Promise<any>>}
     */
    remote: Record<string, (...args: any[]) => Promise<any>>;
    /** The server's attributes in the session that stands. @returns {ReadonlyMap<string, Attribute>} */
    get attributes(): ReadonlyMap<string, Attribute>;
    /** @override */
    override _prepare(): Promise<string | undefined>;
    /**
     * @param {import("../world.js").Socket} socket
     * @param {string | undefined} said
     * @override
     */
    override _session(socket: import("../world.js").Socket, said: string | undefined): UmqSession;
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
    call(payload: string, options?: CallOptions): Promise<Answer>;
    /**
     * Call what the server registered as `callback` (UM-11); otherwise like `call`.
     *
     * @param {string} callback
     * @param {string} argument
     * @param {CallOptions} [options]
     * @returns {Promise<Answer>}
     */
    callback(callback: string, argument: string, options?: CallOptions): Promise<Answer>;
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
    callMethod(name: string, args?: readonly unknown[], options?: CallOptions): Promise<any>;
    /**
     * @template T
     * @param {CallOptions} options
     * @param {(session: UmqSession, options: CallOptions) => Promise<T>} ask
     */
    _inSession<T>({ timeout, safe, ...options }: CallOptions, ask: (session: UmqSession, options: CallOptions) => Promise<T>): Promise<T>;
    /**
     * Let the server call `answering` (UM-11); returns the id to tell it. The id is the same in every
     * session; the hook `onOpen` is the place to tell it to the server again.
     *
     * @param {Answering} answering
     */
    registerCallback(answering: Answering): string;
    /**
     * Calls of this callback are refused from now on.
     *
     * @param {string} id
     */
    unregisterCallback(id: string): void;
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
    subscribe(request: (id: string) => string, hook?: import("./subscription.js").UpdateHook | null, options?: CallOptions): Promise<Subscription>;
    /**
     * Set an attribute at the server (UM-15), now and in every session to come. TypeError for a name
     * with `=`.
     *
     * @param {string} name
     * @param {string} value
     * @param {readonly Sendable[]} [attachments]
     */
    setAttribute(name: string, value: string, attachments?: readonly Sendable[]): void;
    /**
     * Unset an attribute at the server (UM-16), now and in every session to come.
     *
     * @param {string} name
     */
    unsetAttribute(name: string): void;
}
export type Answer = import("./exchange.js").Answer;
export type Answering = import("./exchange.js").Answering;
export type Sendable = import("./exchange.js").Sendable;
export type Update = import("./exchange.js").Update;
export type Attribute = import("./session.js").Attribute;
/**
 * `safe`: the call may be made twice, so it is repeated when a session ends before its answer.
 */
export type CallOptions = import("./session.js").CallOptions & {
    safe?: boolean;
};
export type ClientLimits = Partial<import("./terms.js").UmqLimits & import("../limits.js").Limits<typeof COMEBACK_LIMITS>>;
export type LogIn = {
    /**
     * for a server with `--auth`
     */
    login?: {
        user: string;
        password: string;
    } | undefined;
    /**
     * what authorises elsewhere; a function
     * is asked for each session
     */
    hello?: string | (() => string | Promise<string>) | undefined;
    helloAttachments?: readonly import("./exchange.js").Sendable[] | undefined;
};
export type UmqOptions = import("../comeback.js").ComebackOptions & import("./session.js").Serving & LogIn & {
    limits?: ClientLimits;
    onOpen?: (session: UmqSession) => void;
};
import { UmqSession } from "./session.js";
import { Comeback } from "../comeback.js";
import { Unread } from "../unread.js";
import { Subscription } from "./subscription.js";
import { COMEBACK_LIMITS } from "../comeback.js";
