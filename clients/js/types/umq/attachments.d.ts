/** @typedef {Uint8Array | AttachmentLost} Attachment */
/** @param {readonly Attachment[]} attachments */
export function bytesOf(attachments: readonly Attachment[]): number;
/**
 * A message that waits for its attachments or for an earlier message of its key; `message` is null
 * once nobody wants it, and its slots then swallow what fills them.
 *
 * @template M
 * @typedef {object} Announcement
 * @property {M | null} message
 * @property {number} missing
 * @property {string | null} key
 * @property {number} bytes
 * @property {boolean} streamed the message was delivered before its attachments
 */
/**
 * The peer's announcements, oldest first, and the order of delivery.
 *
 * @template {{attachments?: Attachment[]}} M
 */
export class Incoming<M extends {
    attachments?: Attachment[];
}> {
    /** @type {Announcement<M>[]} */
    _announcements: Announcement<M>[];
    /** @type {Map<string, Announcement<M>[]>} */
    _queues: Map<string, Announcement<M>[]>;
    /** Bytes that wait here. */
    bytes: number;
    /** Messages that wait here. */
    waiting: number;
    /** How many announcements have slots to fill. */
    get open(): number;
    /** The announcement that the next attachment belongs to, or undefined. */
    get first(): Announcement<M> | undefined;
    /**
     * @param {M | null} message null: what fills the slots is discarded
     * @param {number} count ≥ 1 slots
     * @param {string | null} key messages of one key are delivered in order
     * @param {number} weight of the message's text
     * @returns {Announcement<M>}
     */
    announce(message: M | null, count: number, key?: string | null, weight?: number): Announcement<M>;
    /**
     * Put a complete message behind earlier ones of `key`; false if there are none.
     *
     * @param {M} message
     * @param {string} key
     * @param {number} weight
     */
    queued(message: M, key: string, weight: number): boolean;
    /** @param {Announcement<M>} announcement */
    _wait(announcement: Announcement<M>): void;
    /**
     * Fill the first open slot of the oldest announcement; returns the messages that may be delivered.
     *
     * @param {Attachment} attachment
     * @returns {M[]}
     */
    fill(attachment: Attachment): M[];
    /**
     * Its message, which has no key, is delivered now, and its attachments one by one.
     *
     * @param {Announcement<M>} announcement
     */
    stream(announcement: Announcement<M>): M;
    /**
     * Nobody wants its message any more; its slots stay.
     *
     * @param {Announcement<M>} announcement
     */
    forget(announcement: Announcement<M>): void;
    /**
     * Nobody wants what is still to come of a message that is streamed.
     *
     * @param {M} message
     */
    drop(message: M): void;
    /**
     * @param {Announcement<M>} announcement
     * @returns {M[]}
     */
    _release(announcement: Announcement<M>): M[];
    /** @param {Announcement<M>} announcement */
    _give(announcement: Announcement<M>): M;
}
/** An attachment of ours that comes later: pass it to a verb, then have the machine fill it. */
export class Slot {
    /** @type {Uint8Array | null} */
    body: Uint8Array | null;
    /** @type {string | null} */
    error: string | null;
    /** It may be sent when its turn comes. */
    get filled(): boolean;
}
/** Our own slots, in the order of sending. */
export class Outgoing {
    /** @type {Slot[]} */
    _slots: Slot[];
    /** The slot that holds up all others, or undefined. */
    get first(): Slot | undefined;
    /** @param {readonly (Uint8Array | Slot)[]} attachments */
    add(attachments: readonly (Uint8Array | Slot)[]): void;
    /** Remove and return the slots whose turn has come. */
    due(): Slot[];
    clear(): void;
}
export type Attachment = Uint8Array | AttachmentLost;
/**
 * A message that waits for its attachments or for an earlier message of its key; `message` is null
 * once nobody wants it, and its slots then swallow what fills them.
 */
export type Announcement<M> = {
    message: M | null;
    missing: number;
    key: string | null;
    bytes: number;
    /**
     * the message was delivered before its attachments
     */
    streamed: boolean;
};
import { AttachmentLost } from "../errors.js";
