/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./events.js").Ordered} Ordered */
/** @typedef {import("./events.js").ResultEvent} ResultEvent */
/** @typedef {import("./events.js").UmqEvent} UmqEvent */
/** @typedef {import("./terms.js").UmqLimits} UmqLimits */
/** @typedef {import("./wire.js").Frame} Frame */
/** Collects the attachments of the peer's messages; a subclass has `_emit`, what a whole message does. */
export class Arriving extends Sending {
    /** @type {Incoming<any>} */
    _incoming: Incoming<any>;
    _incomingSince: number;
    _paused: boolean;
    /** @type {UmqEvent[] | null} What waits for the attachments of `W`. */
    _barrier: UmqEvent[] | null;
    /**
     * The peer broke the protocol: say `F` as the last command (UM-08, UM-18).
     *
     * @param {ProtocolFault} fault
     * @param {UmqEvent[]} events
     */
    _fail(fault: ProtocolFault, events: UmqEvent[]): void;
    /**
     * @param {string} reason
     * @param {string} text
     * @param {UmqEvent[]} events
     * @param {number} [code]
     */
    _fault(reason: string, text: string, events: UmqEvent[], code?: number): void;
    /**
     * Deliver `message` now, or when its attachments are there and its turn has come.
     *
     * @param {Extract<UmqEvent, {attachments: Attachment[]}>} message
     * @param {Frame} frame
     * @param {string | null} key
     * @param {UmqEvent[]} events
     */
    _deliver(message: Extract<UmqEvent, {
        attachments: Attachment[];
    }>, frame: Frame, key: string | null, events: UmqEvent[]): import("./attachments.js").Announcement<any> | null;
    /**
     * Deliver a complete message, behind earlier ones of its key (UM-04).
     *
     * @param {Ordered} message
     * @param {string} key
     * @param {number} weight
     * @param {UmqEvent[]} events
     */
    _inTurn(message: Ordered, key: string, weight: number, events: UmqEvent[]): void;
    /**
     * @param {Extract<UmqEvent, {attachments: Attachment[]}> | null} message
     * @param {Frame} frame
     * @param {string | null} key
     * @param {UmqEvent[]} events
     */
    _announce(message: Extract<UmqEvent, {
        attachments: Attachment[];
    }> | null, frame: Frame, key: string | null, events: UmqEvent[]): import("./attachments.js").Announcement<any> | null;
    /**
     * A message that nobody gets still owns its slots (UM-04).
     *
     * @param {Frame} frame
     * @param {UmqEvent[]} events
     */
    _discard(frame: Frame, events: UmqEvent[]): void;
    /** @param {UmqEvent[]} events */
    _tooMuchWaits(events: UmqEvent[]): boolean;
    /**
     * @param {Attachment} attachment
     * @param {UmqEvent[]} events
     */
    _fill(attachment: Attachment, events: UmqEvent[]): void;
    /**
     * Return the event to the caller, unless the attachments of `W` are still to come (UM-07).
     *
     * @param {UmqEvent} event
     * @param {UmqEvent[]} events
     */
    _give(event: UmqEvent, events: UmqEvent[]): void;
    /**
     * Do what `message` says and deliver it: it is complete and its turn has come.
     *
     * @param {Ordered} _message
     * @param {UmqEvent[]} _events
     */
    _emit(_message: Ordered, _events: UmqEvent[]): void;
    /**
     * Nobody waits for this call any more; its answer will be ignored. False if it is too late.
     *
     * @param {string} number
     */
    cancel(number: string): boolean;
    /**
     * Nobody wants the attachments that are still to come of a streamed answer.
     *
     * @param {ResultEvent} result
     */
    dropAttachments(result: ResultEvent): void;
    /**
     * @param {number} now
     * @param {UmqEvent[]} events
     */
    _attachmentLate(now: number, events: UmqEvent[]): void;
}
export type Attachment = import("./attachments.js").Attachment;
export type Ordered = import("./events.js").Ordered;
export type ResultEvent = import("./events.js").ResultEvent;
export type UmqEvent = import("./events.js").UmqEvent;
export type UmqLimits = import("./terms.js").UmqLimits;
export type Frame = import("./wire.js").Frame;
import { Sending } from "./sending.js";
import { Incoming } from "./attachments.js";
import { ProtocolFault } from "../errors.js";
