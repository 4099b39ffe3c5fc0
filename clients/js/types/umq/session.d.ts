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
 * @property {(name: string, attribute: Attribute | null) => void} [onAttribute] is told that an
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
    constructor(session: UmqSession, topic: string);
    _session: UmqSession;
    _topic: string;
    /** @type {(why: "unsubscribed" | "closed" | "lost") => void} */
    _end: (why: "unsubscribed" | "closed" | "lost") => void;
    /** Fires when nobody can publish to it any more. @type {Promise<"unsubscribed" | "closed" | "lost">} */
    ended: Promise<"unsubscribed" | "closed" | "lost">;
    /**
     * Send an update; throws ConnectionClosed when the topic has ended.
     *
     * @param {string} payload
     * @param {readonly Sendable[]} [attachments]
     */
    publish(payload: string, attachments?: readonly Sendable[]): void;
    /** Tell the subscriber that there are no more updates. */
    close(): void;
}
/**
 * One session; {@link UmqClient} makes a new one each time it comes back.
 *
 * @extends {LinkedSession<Machine>}
 */
export class UmqSession extends LinkedSession<Machine> {
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
     * @param {import("../unread.js").Unread} options.unread
     */
    constructor(socket: import("../world.js").Socket, { world, limits, serving, callbacks, hello, helloAttachments, drainSeconds, unread }: {
        world: import("../world.js").World;
        limits: Partial<import("./terms.js").UmqLimits>;
        serving: Serving;
        callbacks: Map<string, Answering>;
        hello: string;
        helloAttachments: readonly Sendable[];
        drainSeconds: number;
        unread: import("../unread.js").Unread;
    });
    _serving: Serving;
    _callbacks: Map<string, import("./exchange.js").Answering>;
    _drainSeconds: number;
    _closing: boolean;
    /** @type {Promise<void> | null} */
    _closed: Promise<void> | null;
    /** What the server said with its welcome. @type {Answer | null} */
    welcome: Answer | null;
    /** The peer's attributes. @type {Map<string, Attribute>} */
    attributes: Map<string, Attribute>;
    /** @type {Map<string, Topic>} */
    _topics: Map<string, Topic>;
    /** @type {Map<string, Subscription>} */
    _subscriptions: Map<string, Subscription>;
    /** @type {Map<Slot, () => Promise<Uint8Array>>} Attachments that are made when their turn comes. */
    _unmade: Map<Slot, () => Promise<Uint8Array>>;
    _feeding: boolean;
    /** @type {Map<object, AttachmentStream>} */
    _streams: Map<object, AttachmentStream>;
    /** @type {() => void} */
    _idle: () => void;
    _unread: import("../unread.js").Unread;
    _reading: Reading;
    /**
     * Let the machine do something now, and send what it says.
     *
     * @template T
     * @param {(machine: Machine, bodies: (Uint8Array | Slot)[]) => T} verb
     * @param {readonly Sendable[]} [attachments]
     */
    _do<T>(verb: (machine: Machine, bodies: (Uint8Array | Slot)[]) => T, attachments?: readonly Sendable[]): T;
    /** Make each attachment when its turn has come and the socket has room. */
    _feed(): Promise<void>;
    /** @param {() => void} fill */
    _fill(fill: () => void): void;
    /** @type {{[type in UmqEvent["type"]]: (event: Extract<UmqEvent, {type: type}>) => void}} */
    _on: { [type in UmqEvent["type"]]: (event: Extract<UmqEvent, {
        type: type;
    }>) => void; };
    /**
     * @param {import("./events.js").ResultEvent} result
     * @param {number} count
     * @param {AbortSignal | undefined} signal
     */
    _streamOf(result: import("./events.js").ResultEvent, count: number, signal: AbortSignal | undefined): AttachmentStream;
    /**
     * @param {unknown} waiter
     * @param {(waiter: Waiter) => void} settle
     */
    _settled(waiter: unknown, settle: (waiter: Waiter) => void): void;
    /** Whoever closes the session waits for this. */
    _lookIdle(): void;
    get _busy(): boolean;
    /** The socket is not read, because the program has not taken what arrived. */
    get paused(): boolean;
    /**
     * @param {string} _payload
     * @returns {Answering}
     */
    _answering(_payload: string): Answering;
    /**
     * @param {{id: string, payload: string, attachments: Attachment[], callback: string | null}} event
     * @param {Answering | undefined} answering
     */
    _serve({ id, payload, attachments, callback }: {
        id: string;
        payload: string;
        attachments: Attachment[];
        callback: string | null;
    }, answering: Answering | undefined): Promise<void>;
    /**
     * Call the peer (UM-09). Rejected with CallFailed (`E`), TimedOut, SessionRefused (`F`),
     * ConnectionClosed, or LimitExceeded (nothing was sent).
     *
     * @param {string} payload
     * @param {CallOptions} [options]
     * @returns {Promise<Answer>}
     */
    call(payload: string, options?: CallOptions): Promise<Answer>;
    /**
     * Call what the peer registered as `callback` (UM-11); otherwise like `call`.
     *
     * @param {string} callback
     * @param {string} argument
     * @param {CallOptions} [options]
     * @returns {Promise<Answer>}
     */
    callback(callback: string, argument: string, options?: CallOptions): Promise<Answer>;
    /**
     * @param {CallOptions} options
     * @param {(machine: Machine, bodies: (Uint8Array | Slot)[], waiter: Waiter, deadline: number) => string} verb
     * @returns {Promise<Answer>}
     */
    _ask({ attachments, timeout, signal }: CallOptions, verb: (machine: Machine, bodies: (Uint8Array | Slot)[], waiter: Waiter, deadline: number) => string): Promise<Answer>;
    /**
     * Ask the peer to publish to a new topic; its updates go to `subscription`.
     *
     * @param {Subscription} subscription
     * @param {(id: string) => string} request
     * @param {CallOptions} options
     * @returns {Promise<void>} fires when the peer has agreed
     */
    _subscribe(subscription: Subscription, request: (id: string) => string, options: CallOptions): Promise<void>;
    /** @param {string} topic */
    _unsubscribe(topic: string): void;
    /**
     * The peer has chosen `id`: publish to the topic that this returns (UM-12). TypeError for what is
     * no id or in use.
     *
     * @param {string} id
     */
    openTopic(id: string): Topic;
    /**
     * Set an attribute at the peer (UM-15).
     *
     * @param {string} name
     * @param {string} value
     * @param {readonly Sendable[]} [attachments]
     */
    setAttribute(name: string, value: string, attachments?: readonly Sendable[]): void;
    /**
     * Unset an attribute at the peer (UM-16).
     *
     * @param {string} name
     */
    unsetAttribute(name: string): void;
    /**
     * Wait for the answers to our calls and for ours to the peer's (within `drain`), then close.
     *
     * @returns {Promise<void>}
     */
    close(): Promise<void>;
    _close(): Promise<void>;
    /** Close at once. */
    abort(): void;
}
export type Attachment = import("./attachments.js").Attachment;
export type Slot = import("./attachments.js").Slot;
export type Answer = import("./exchange.js").Answer;
export type Answering = import("./exchange.js").Answering;
export type Sendable = import("./exchange.js").Sendable;
export type UmqEvent = import("./events.js").UmqEvent;
export type Subscription = import("./subscription.js").Subscription;
export type Attribute = {
    value: string;
    attachments: Attachment[];
};
/**
 * What the application does for its peer.
 */
export type Serving = {
    /**
     * the peer calls these with JSON
     */
    methods?: Readonly<Record<string, (...args: any[]) => any>> | undefined;
    /**
     * answers all other calls of the peer
     */
    onCall?: import("./exchange.js").Answering | undefined;
    /**
     * is told that an
     * attribute of the peer was set, or (null) unset
     */
    onAttribute?: ((name: string, attribute: Attribute | null) => void) | undefined;
};
export type CallOptions = {
    attachments?: readonly import("./exchange.js").Sendable[] | undefined;
    /**
     * seconds for all of it; by default the limit `call-seconds`
     */
    timeout?: number | undefined;
    /**
     * gives the call up, and the attachments of a streamed answer
     */
    signal?: AbortSignal | undefined;
    /**
     * the answer comes before its attachments, which are in its `stream`
     */
    streamed?: boolean | undefined;
};
export type Waiter = {
    resolve: (answer: Answer) => void;
    reject: (error: unknown) => void;
    signal?: AbortSignal;
};
import { Machine } from "./machine.js";
import { LinkedSession } from "../session.js";
import { AttachmentStream } from "./streams.js";
import { Reading } from "../reading.js";
