/** @typedef {import("./exchange.js").Update} Update */
/** @typedef {import("./session.js").UmqSession} UmqSession */
/**
 * Why a subscription has ended: the server closed the topic, we unsubscribed, the server refused to
 * renew it, we took updates too slowly, or the client is closed.
 *
 * @typedef {"closed" | "unsubscribed" | "refused" | "slow" | "lost"} EndReason
 */
export const BACKLOG: 10000;
/** Its updates go to a hook, or wait here for `for await`. */
export class Subscription {
    /**
     * @param {((update: Update) => void) | null} hook
     * @param {(subscription: Subscription) => void} forget
     */
    constructor(hook: ((update: Update) => void) | null, forget: (subscription: Subscription) => void);
    _hook: ((update: Update) => void) | null;
    _forget: (subscription: Subscription) => void;
    /** @type {AsyncQueue<Update>} */
    _updates: AsyncQueue<Update>;
    /** @type {UmqSession | null} */
    _session: UmqSession | null;
    /** @type {(reason: EndReason) => void} */
    _ended: (reason: EndReason) => void;
    _over: boolean;
    /** The id of its topic in the present session. */
    id: string;
    /** Fires when there are no more updates, with the reason. @type {Promise<EndReason>} */
    ended: Promise<EndReason>;
    /** The next update. @returns {Promise<IteratorResult<Update, undefined>>} */
    next(): Promise<IteratorResult<Update, undefined>>;
    /** Called when a `for await` loop is left: unsubscribes. @returns {Promise<IteratorResult<Update, undefined>>} */
    return(): Promise<IteratorResult<Update, undefined>>;
    /** No more updates are wanted. */
    unsubscribe(): void;
    /**
     * @param {UmqSession} session
     * @param {string} topic
     */
    _begun(session: UmqSession, topic: string): void;
    /** @param {Update} update */
    _updated(update: Update): void;
    /**
     * @param {EndReason} reason
     * @param {Error | null} [error]
     */
    _finish(reason: EndReason, error?: Error | null): void;
    /** @param {Error} _error */
    _lost(_error: Error): void;
    /** @param {Error | null} error */
    _closed(error: Error | null): void;
    /** The updates, in order: several loops share them. */
    [Symbol.asyncIterator](): this;
}
export type Update = import("./exchange.js").Update;
export type UmqSession = import("./session.js").UmqSession;
/**
 * Why a subscription has ended: the server closed the topic, we unsubscribed, the server refused to
 * renew it, we took updates too slowly, or the client is closed.
 */
export type EndReason = "closed" | "unsubscribed" | "refused" | "slow" | "lost";
import { AsyncQueue } from "../async-queue.js";
