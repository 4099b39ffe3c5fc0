/**
 * Attachments find their messages by order alone (UM-04): binary messages, or `-`, fill the slots
 * of all announcements in order, whatever text comes between.
 */

import { AttachmentLost } from "../errors.js";

/** @typedef {Uint8Array | AttachmentLost} Attachment */

/** @param {readonly Attachment[]} attachments */
export function bytesOf(attachments) {
  return attachments.reduce((sum, one) => sum + (one instanceof Uint8Array ? one.length : 0), 0);
}

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
export class Incoming {
  constructor() {
    /** @type {Announcement<M>[]} */
    this._announcements = [];
    /** @type {Map<string, Announcement<M>[]>} */
    this._queues = new Map();
    /** Bytes that wait here. */
    this.bytes = 0;
    /** Messages that wait here. */
    this.waiting = 0;
  }

  /** How many announcements have slots to fill. */
  get open() {
    return this._announcements.length;
  }

  /** The announcement that the next attachment belongs to, or undefined. */
  get first() {
    return this._announcements.at(0);
  }

  /**
   * @param {M | null} message null: what fills the slots is discarded
   * @param {number} count ≥ 1 slots
   * @param {string | null} key messages of one key are delivered in order
   * @param {number} weight of the message's text
   * @returns {Announcement<M>}
   */
  announce(message, count, key = null, weight = 0) {
    const announcement = { message, missing: count, key, bytes: message ? weight : 0, streamed: false };
    this._announcements.push(announcement);
    if (message) this._wait(announcement);
    return announcement;
  }

  /**
   * Put a complete message behind earlier ones of `key`; false if there are none.
   *
   * @param {M} message
   * @param {string} key
   * @param {number} weight
   */
  queued(message, key, weight) {
    if (!this._queues.has(key)) return false;
    this._wait({ message, missing: 0, key, bytes: weight, streamed: false });
    return true;
  }

  /** @param {Announcement<M>} announcement */
  _wait(announcement) {
    this.bytes += announcement.bytes;
    this.waiting++;
    if (announcement.key === null) return;
    const queue = this._queues.get(announcement.key);
    if (queue) queue.push(announcement);
    else this._queues.set(announcement.key, [announcement]);
  }

  /**
   * Fill the first open slot of the oldest announcement; returns the messages that may be delivered.
   *
   * @param {Attachment} attachment
   * @returns {M[]}
   */
  fill(attachment) {
    const announcement = this._announcements[0];
    announcement.missing--;
    if (!announcement.missing) this._announcements.shift();
    if (!announcement.message || announcement.streamed) return [];
    announcement.message.attachments?.push(attachment);
    const bytes = attachment instanceof Uint8Array ? attachment.length : 0;
    announcement.bytes += bytes;
    this.bytes += bytes;
    return announcement.missing ? [] : this._release(announcement);
  }

  /**
   * Its message, which has no key, is delivered now, and its attachments one by one.
   *
   * @param {Announcement<M>} announcement
   */
  stream(announcement) {
    announcement.streamed = true;
    return this._give(announcement);
  }

  /**
   * Nobody wants its message any more; its slots stay.
   *
   * @param {Announcement<M>} announcement
   */
  forget(announcement) {
    if (!announcement.streamed) this._give(announcement);
    announcement.message = null;
  }

  /**
   * Nobody wants what is still to come of a message that is streamed.
   *
   * @param {M} message
   */
  drop(message) {
    const announcement = this._announcements.find((one) => one.message === message);
    if (announcement) this.forget(announcement);
  }

  /**
   * @param {Announcement<M>} announcement
   * @returns {M[]}
   */
  _release(announcement) {
    const { key } = announcement;
    if (key === null) return [this._give(announcement)];
    const queue = /** @type {Announcement<M>[]} */ (this._queues.get(key));
    const ready = [];
    while (queue.length && !queue[0].missing)
      ready.push(this._give(/** @type {Announcement<M>} */ (queue.shift())));
    if (!queue.length) this._queues.delete(key);
    return ready;
  }

  /** @param {Announcement<M>} announcement */
  _give(announcement) {
    this.bytes -= announcement.bytes;
    this.waiting--;
    return /** @type {M} */ (announcement.message);
  }
}

/** An attachment of ours that comes later: pass it to a verb, then have the machine fill it. */
export class Slot {
  constructor() {
    /** @type {Uint8Array | null} */
    this.body = null;
    /** @type {string | null} */
    this.error = null;
  }

  /** It may be sent when its turn comes. */
  get filled() {
    return this.body !== null || this.error !== null;
  }
}

/** Our own slots, in the order of sending. */
export class Outgoing {
  constructor() {
    /** @type {Slot[]} */
    this._slots = [];
  }

  /** The slot that holds up all others, or undefined. */
  get first() {
    return this._slots.at(0);
  }

  /** @param {readonly (Uint8Array | Slot)[]} attachments */
  add(attachments) {
    for (const attachment of attachments) {
      if (attachment instanceof Slot) {
        this._slots.push(attachment);
      } else {
        const slot = new Slot();
        slot.body = attachment;
        this._slots.push(slot);
      }
    }
  }

  /** Remove and return the slots whose turn has come. */
  due() {
    const open = this._slots.findIndex((slot) => !slot.filled);
    return this._slots.splice(0, open < 0 ? this._slots.length : open);
  }

  clear() {
    this._slots = [];
  }
}
