/**
 * The verbs of a session. The rest of it, what arrives, is in the subclasses.
 *
 * @extends {TimedMachine<State, UmqEvent>}
 */
export class Sending extends TimedMachine<import("./terms.js").State, import("./events.js").UmqEvent> {
    /**
     * @param {Partial<UmqLimits>} limits
     * @param {number} now
     */
    constructor(limits: Partial<UmqLimits>, now: number);
    limits: import("../limits.js").Limits<{
        readonly "payload-characters": readonly [number, "characters", "text of one command"];
        readonly attachments: readonly [32, "attachments", "of one command"];
        readonly "hello-seconds": readonly [10, "s", "from the open socket to the server's W"];
        readonly "attachment-bytes": readonly [number, "bytes", "one attachment"];
        readonly "attachments-bytes": readonly [number, "bytes", "attachments that wait for the rest of their message"];
        readonly "unread-bytes": readonly [number, "bytes", "updates and streamed attachments that nobody has taken; a quarter pauses"];
        readonly "attachment-seconds": readonly [60, "s", "the next attachment's arrival"];
        readonly "attachment-fill-seconds": readonly [45, "s", "ours, before - takes its place"];
        readonly announcements: readonly [1024, "messages", "with attachments to come"];
        readonly "waiting-messages": readonly [1024, "messages", "behind such attachments"];
        readonly calls: readonly [1024, "calls", "of the server, not answered yet"];
        readonly "calls-bytes": readonly [number, "bytes", "such calls, with attachments"];
        readonly "own-calls": readonly [4096, "calls", "of ours, not answered yet"];
        readonly "call-seconds": readonly [60, "s", "for the answer to a call"];
        readonly callbacks: readonly [1024, "callbacks", "registered here"];
        readonly topics: readonly [1024, "topics", "the server subscribed here"];
        readonly subscriptions: readonly [1024, "topics", "we subscribed"];
        readonly "closing-seconds": readonly [60, "s", "late updates are dropped silently"];
        readonly "closing-topics": readonly [1024, "topics", "the oldest is forgotten above"];
        readonly attributes: readonly [256, "attributes", "of the server"];
        readonly "attributes-bytes": readonly [number, "bytes", "names, values and attachments of these"];
    }>;
    /** @type {(string | Uint8Array)[]} */
    _out: (string | Uint8Array)[];
    _outgoing: Outgoing;
    _outgoingSince: number;
    /** @type {Map<string, {id: string, bytes: number}>} The peer's calls by value. */
    _serving: Map<string, {
        id: string;
        bytes: number;
    }>;
    _servingBytes: number;
    /** @type {Map<string, OwnCall>} */
    _pending: Map<string, OwnCall>;
    _lastCall: number;
    _lastTopic: number;
    /** @type {Set<string>} */
    _callbacks: Set<string>;
    /** @type {Set<string>} */
    _subscriptions: Set<string>;
    /** @type {Map<string, number>} Topics that ended here and when to forget them. */
    _closing: Map<string, number>;
    /** @type {Map<string, string>} The peer's topics by value, with the id as it came. */
    _published: Map<string, string>;
    /** Calls of ours without an answer. */
    get callsPending(): number;
    /** Calls of the peer without an answer. */
    get callsServed(): number;
    /** Return and forget the messages to send, in order. */
    outputs(): (string | Uint8Array<ArrayBufferLike>)[];
    /** The session is over: nothing is due any more. */
    _end(): void;
    /** @param {string} number */
    _served(number: string): void;
    /** @param {string} topic */
    _closeTopicHere(topic: string): void;
    /** Throw ConnectionClosed unless the session stands. */
    _opened(): void;
    /**
     * Throw what a verb would throw for this payload and these attachments.
     *
     * @param {string} payload
     * @param {readonly (Uint8Array | Slot)[]} attachments
     */
    check(payload: string, attachments?: readonly (Uint8Array | Slot)[]): void;
    /**
     * @param {keyof typeof import("./wire.js").COMMANDS} letter
     * @param {string} id
     * @param {string} payload
     * @param {readonly (Uint8Array | Slot)[]} [attachments]
     */
    _send(letter: keyof typeof import("./wire.js").COMMANDS, id: string, payload: string, attachments?: readonly (Uint8Array | Slot)[]): void;
    _sendSlots(): void;
    /** The slot of ours that all later ones wait for, or undefined. */
    get slotDue(): Slot | undefined;
    /**
     * Fill a slot that was passed to a verb; one above `attachment-bytes` is replaced by `-`.
     *
     * @param {Slot} slot
     * @param {Uint8Array} body
     */
    fill(slot: Slot, body: Uint8Array): void;
    /**
     * Send `-` for this slot: there will be no attachment (UM-04).
     *
     * @param {Slot} slot
     * @param {string} text
     */
    fillError(slot: Slot, text: string): void;
    /**
     * Say `H`, the first verb of all (UM-06).
     *
     * @param {string} [payload]
     * @param {readonly (Uint8Array | Slot)[]} [attachments]
     */
    hello(payload?: string, attachments?: readonly (Uint8Array | Slot)[]): void;
    /**
     * Call the peer (UM-09); the answer's event carries `waiter`. Returns the call's number.
     *
     * @param {string} payload
     * @param {readonly (Uint8Array | Slot)[]} attachments
     * @param {unknown} waiter
     * @param {number} deadline when `expired` comes instead
     * @param {boolean} streamed the answer's attachments come one by one (UM-19)
     */
    call(payload: string, attachments?: readonly (Uint8Array | Slot)[], waiter?: unknown, deadline?: number, streamed?: boolean): string;
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
    callback(callback: string, argument: string, attachments?: readonly (Uint8Array | Slot)[], waiter?: unknown, deadline?: number, streamed?: boolean): string;
    /**
     * @param {"C" | "B"} letter
     * @param {string} payload
     * @param {readonly (Uint8Array | Slot)[]} attachments
     * @param {unknown} waiter
     * @param {number} deadline
     * @param {boolean} streamed
     */
    _ownCall(letter: "C" | "B", payload: string, attachments: readonly (Uint8Array | Slot)[], waiter: unknown, deadline: number, streamed: boolean): string;
    /**
     * Answer the peer's call `id` (UM-10); nothing happens if it is not pending.
     *
     * @param {string} id
     * @param {string} payload
     * @param {readonly (Uint8Array | Slot)[]} [attachments]
     */
    result(id: string, payload: string, attachments?: readonly (Uint8Array | Slot)[]): void;
    /**
     * Refuse the peer's call `id`, or say that it failed (UM-09).
     *
     * @param {string} id
     * @param {string} payload
     */
    error(id: string, payload: string): void;
    /**
     * @param {"R" | "E"} letter
     * @param {string} id
     * @param {string} payload
     * @param {readonly (Uint8Array | Slot)[]} attachments
     */
    _answer(letter: "R" | "E", id: string, payload: string, attachments: readonly (Uint8Array | Slot)[]): void;
    /**
     * The peer may call `callback` until it is unregistered (UM-11).
     *
     * @param {string} callback
     */
    registerCallback(callback: string): void;
    /** @param {string} callback */
    unregisterCallback(callback: string): void;
    /** A new topic, known before the call that asks the peer to publish to it (UM-14). */
    subscribe(): string;
    /**
     * Say `U`; what still comes is dropped silently (UM-14). Nothing if it has ended.
     *
     * @param {string} topic
     */
    unsubscribe(topic: string): void;
    /**
     * The peer subscribed and chose `id`: publish to the topic that this returns (UM-12).
     *
     * @param {string} id
     */
    openTopic(id: string): string;
    /**
     * Send an update on an open topic (UM-12); throws ConnectionClosed if the topic was closed.
     *
     * @param {string} topic
     * @param {string} payload
     * @param {readonly (Uint8Array | Slot)[]} [attachments]
     */
    publish(topic: string, payload: string, attachments?: readonly (Uint8Array | Slot)[]): void;
    /**
     * Say `D` (UM-13); nothing if the topic has ended already.
     *
     * @param {string} topic
     */
    closeTopic(topic: string): void;
    /**
     * Set an attribute at the peer (UM-15).
     *
     * @param {string} name
     * @param {string} value
     * @param {readonly (Uint8Array | Slot)[]} [attachments]
     */
    setAttribute(name: string, value: string, attachments?: readonly (Uint8Array | Slot)[]): void;
    /**
     * Unset an attribute at the peer (UM-16).
     *
     * @param {string} name
     */
    unsetAttribute(name: string): void;
    /**
     * Say `F` as our last command (UM-08); then close the socket.
     *
     * @param {number} code
     * @param {string} text
     */
    fatal(code: number, text: string): void;
    /** The connection is gone: the waiters of all calls that have no answer, oldest first. */
    lost(): unknown[];
}
export type UmqEvent = import("./events.js").UmqEvent;
export type UmqLimits = import("./terms.js").UmqLimits;
export type State = import("./terms.js").State;
export type OwnCall = {
    waiter: unknown;
    deadline: number;
    /**
     * the announcement of its result's attachments
     */
    answer: import("./attachments.js").Announcement<any> | null;
    /**
     * its result comes before its attachments
     */
    streamed: boolean;
};
import { TimedMachine } from "../machine.js";
import { Outgoing } from "./attachments.js";
import { Slot } from "./attachments.js";
