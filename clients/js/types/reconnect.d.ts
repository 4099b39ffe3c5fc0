/** @typedef {import("./world.js").World} World */
/**
 * `idle` before `start`, `down` while it waits to try again, `closed` for good.
 *
 * @typedef {"idle" | "connecting" | "open" | "down" | "closed"} ClientState
 */
/** How a client reconnects; the option `limits` changes these by name. */
export const RECONNECT_LIMITS: {
    readonly "socket-seconds": readonly [10, "s", "until the socket is open"];
    readonly "retry-first": readonly [1, "s", "the wait after a loss; it doubles, and half of it is left to chance"];
    readonly "retry-most": readonly [60, "s", "the longest of these waits"];
    readonly "refused-first": readonly [2, "s", "the wait after a refusal, likewise"];
    readonly "refused-most": readonly [300, "s", "the longest of these"];
    readonly "steady-seconds": readonly [10, "s", "after a session of this length the waits begin anew"];
    readonly "waiting-verbs": readonly [10000, "calls", "that wait for a session"];
    readonly drain: readonly [30, "s", "close() waits so long for what is on its way"];
};
/**
 * @typedef {object} ReconnectOptions
 * @property {boolean} [reconnect] false: the client is closed when its first session ends
 * @property {boolean} [stopWhenRefused] true: a refusal of the server closes the client
 * @property {(state: ClientState, error: Error | null) => void} [onState] is told each state, and
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
export class ReconnectingClient<S extends Session> {
    /**
     * @template {ReconnectingClient<any>} C
     * @param {C} client
     * @returns {Promise<C>} fires when the first attempt succeeds; rejected, and closed, if it fails
     */
    static _connected<C extends ReconnectingClient<any>>(client: C): Promise<C>;
    /**
     * @param {string | URL} url
     * @param {string} protocol the WebSocket subprotocol
     * @param {ReconnectOptions} options
     * @param {Partial<import("./limits.js").Limits<typeof RECONNECT_LIMITS>>} limits
     */
    constructor(url: string | URL, protocol: string, options: ReconnectOptions, limits: Partial<import("./limits.js").Limits<typeof RECONNECT_LIMITS>>);
    url: string;
    _protocol: string;
    _options: ReconnectOptions;
    _waits: import("./limits.js").Limits<{
        readonly "socket-seconds": readonly [10, "s", "until the socket is open"];
        readonly "retry-first": readonly [1, "s", "the wait after a loss; it doubles, and half of it is left to chance"];
        readonly "retry-most": readonly [60, "s", "the longest of these waits"];
        readonly "refused-first": readonly [2, "s", "the wait after a refusal, likewise"];
        readonly "refused-most": readonly [300, "s", "the longest of these"];
        readonly "steady-seconds": readonly [10, "s", "after a session of this length the waits begin anew"];
        readonly "waiting-verbs": readonly [10000, "calls", "that wait for a session"];
        readonly drain: readonly [30, "s", "close() waits so long for what is on its way"];
    }>;
    /** @type {World} */
    _world: World;
    /** @type {ClientState} */
    state: ClientState;
    /** What ended the last session, or kept the next one from standing. @type {Error | null} */
    error: Error | null;
    /** The session that stands, or null. @type {S | null} */
    session: S | null;
    /** @type {S | null} The one that is being established. */
    _next: S | null;
    _attempts: number;
    _refusals: number;
    /** @type {Set<PendingCall<S>>} */
    _pendingCalls: Set<PendingCall<S>>;
    /** @type {() => void} */
    _cancelRetry: () => void;
    /** Ends the attempt to open a socket. */
    _opening: AbortController;
    /** @type {Promise<void> | null} */
    _closing: Promise<void> | null;
    /** @type {(error: Error | null) => void} */
    _ended: (error: Error | null) => void;
    /**
     * Fires when the client is closed for good, with the error that did it, or null.
     * @type {Promise<Error | null>}
     */
    closed: Promise<Error | null>;
    /** @param {AbortSignal} signal */
    _obey(signal: AbortSignal): void;
    /**
     * What a session needs that is not here at once. What it throws is one attempt that failed.
     *
     * @returns {Promise<any>}
     */
    _prepare(): Promise<any>;
    /**
     * Make a session on an open socket. What this throws, the program has asked for what cannot be.
     *
     * @param {import("./world.js").Socket} _socket
     * @param {any} _prepared
     * @returns {S}
     */
    _session(_socket: import("./world.js").Socket, _prepared: any): S;
    /**
     * A session stands: renew what belongs to it. Called before anything that waits is sent.
     *
     * @param {S} _session
     */
    _renew(_session: S): void;
    /** Begin to connect, and reconnect from then on; fires when the first session stands. */
    start(): Promise<void>;
    /** @param {ClientState} state */
    _enter(state: ClientState): void;
    /**
     * What a hook throws is reported, and changes nothing here.
     *
     * @param {() => unknown} hook
     */
    _safely(hook: () => unknown): void;
    /** One attempt; returns what went wrong, or null. */
    _connect(): Promise<Error | null>;
    /**
     * @param {import("./world.js").Socket} socket
     * @param {any} prepared
     */
    _begin(socket: import("./world.js").Socket, prepared: any): S;
    _isClosed(): boolean;
    _closedError(): Error;
    /** @param {S} session */
    _stands(session: S): void;
    /** @param {Error} error */
    _down(error: Error): void;
    /** @param {Error | null} error */
    _stop(error: Error | null): void;
    /**
     * Close the client: what is on its way is finished (within the limit `drain`), what waits for a
     * session fails with ConnectionClosed. Fires when the connection is closed; never rejected. Who
     * calls it again waits for the same end.
     *
     * @returns {Promise<void>}
     */
    close(): Promise<void>;
    _close(): Promise<void>;
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
    perform<T>(ask: (session: S, seconds: number) => Promise<T>, { seconds, safe, signal }: {
        seconds: number;
        safe?: boolean;
        signal?: AbortSignal;
    }): Promise<T>;
    /** @param {PendingCall<S>} call */
    _wait(call: PendingCall<S>): void;
    /** @param {PendingCall<S>} call */
    _run(call: PendingCall<S>): void;
    /**
     * @param {PendingCall<S>} call
     * @param {unknown} error
     */
    _fail(call: PendingCall<S>, error: unknown): void;
}
export type World = import("./world.js").World;
/**
 * `idle` before `start`, `down` while it waits to try again, `closed` for good.
 */
export type ClientState = "idle" | "connecting" | "open" | "down" | "closed";
export type ReconnectOptions = {
    /**
     * false: the client is closed when its first session ends
     */
    reconnect?: boolean | undefined;
    /**
     * true: a refusal of the server closes the client
     */
    stopWhenRefused?: boolean | undefined;
    /**
     * is told each state, and
     * what ended the session before it
     */
    onState?: ((state: ClientState, error: Error | null) => void) | undefined;
    /**
     * is told what hooks and methods of the program
     * throw; by default `reportError` in pages and `console.error` elsewhere
     */
    onHookError?: ((error: unknown) => void) | undefined;
    /**
     * closes the client at once, also while it connects
     */
    signal?: AbortSignal | undefined;
    /**
     * the class of sockets; by default `ws` where
     * it is installed with Node, WebSocketStream where a browser has it, and WebSocket elsewhere
     */
    WebSocket?: import("./world.js").SocketClass | undefined;
    /**
     * for tests: clock, timers, chance and sockets
     */
    world?: import("./world.js").World | undefined;
};
/**
 * What a session has to have.
 */
export type Session = {
    /**
     * fires when it stands
     */
    established: Promise<unknown>;
    /**
     * fires when it does no longer, with the reason
     */
    ended: Promise<Error>;
    /**
     * end it in order
     */
    close: () => Promise<void>;
    /**
     * end it at once
     */
    abort: () => void;
};
export type PendingCall<S extends Session> = {
    ask: (session: S, seconds: number) => Promise<any>;
    deadline: number;
    safe: boolean;
    resolve: (value: any) => void;
    reject: (error: unknown) => void;
    /**
     * cancels its timer
     */
    forget: () => void;
};
