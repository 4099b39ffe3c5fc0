/** @typedef {import("./exchange.js").Update} Update */
/** @typedef {import("./session.js").UmqSession} UmqSession */
/** @typedef {import("../unread.js").Unread} Unread */
/**
 * Is given each update. An update counts as taken when the promise that this returns is settled.
 *
 * @typedef {(update: Update) => unknown} UpdateHook
 */
/**
 * Why a subscription has ended: the server closed the topic, we unsubscribed, the server refused to
 * renew it, we took updates too slowly, or the client is closed.
 *
 * @typedef {"closed" | "unsubscribed" | "refused" | "slow" | "lost"} EndReason
 */
/** Its updates go to a hook, or wait here for `for await`. */
export class Subscription {
    /**
     * @param {UpdateHook | null} hook
     * @param {object} client
     * @param {(subscription: Subscription) => void} client.forget
     * @param {Unread} client.unread
     * @param {(error: unknown) => void} client.report
     */
    constructor(hook: UpdateHook | null, { forget, unread, report }: {
        forget: (subscription: Subscription) => void;
        unread: Unread;
        report: (error: unknown) => void;
    });
    _hook: UpdateHook | null;
    _forget: (subscription: Subscription) => void;
    _unread: import("../unread.js").Unread;
    _report: (error: unknown) => void;
    /** Updates that the hook works on. */
    _busy: number;
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
     * The hook works on this update until `done` is settled.
     *
     * @param {Update} update
     * @param {PromiseLike<unknown>} done
     */
    _follow(update: Update, done: PromiseLike<unknown>): Promise<void>;
    /** @param {string} why */
    _slow(why: string): void;
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
export type Unread = import("../unread.js").Unread;
/**
 * Is given each update. An update counts as taken when the promise that this returns is settled.
 */
export type UpdateHook = (update: Update) => unknown;
/**
 * Why a subscription has ended: the server closed the topic, we unsubscribed, the server refused to
 * renew it, we took updates too slowly, or the client is closed.
 */
export type EndReason = "closed" | "unsubscribed" | "refused" | "slow" | "lost";
import { AsyncQueue } from "../async-queue.js";
