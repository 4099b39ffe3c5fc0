/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./events.js").Ordered} Ordered */
/** @typedef {import("./events.js").ResultEvent} ResultEvent */
/** @typedef {import("./events.js").UmqEvent} UmqEvent */
/** @typedef {import("./terms.js").UmqLimits} UmqLimits */
/** @typedef {import("./wire.js").Frame} Frame */
/** One session of a client. */
export class Machine extends Arriving {
    /**
     * @param {{limits?: Partial<UmqLimits>, now?: number}} [options] the time for `W` runs from `now`
     */
    constructor({ limits, now }?: {
        limits?: Partial<UmqLimits>;
        now?: number;
    });
    _attributesBytes: number;
    /** @type {Map<string, {value: string, attachments: Attachment[], bytes: number}>} */
    attributes: Map<string, {
        value: string;
        attachments: Attachment[];
        bytes: number;
    }>;
    /**
     * Follow one WebSocket message: text, or the bytes of a binary one.
     *
     * @param {string | Uint8Array} message
     * @param {number} now
     * @returns {UmqEvent[]}
     */
    receive(message: string | Uint8Array, now: number): UmqEvent[];
    /** @type {Record<string, (frame: Frame, events: UmqEvent[]) => void>} */
    _actions: Record<string, (frame: Frame, events: UmqEvent[]) => void>;
    /**
     * May this call be served? Its id is pending then (UM-09, UM-20).
     *
     * @param {Frame} frame
     * @param {UmqEvent[]} events
     */
    _serve(frame: Frame, events: UmqEvent[]): boolean;
    /**
     * @param {Frame} frame
     * @param {number} code
     * @param {string} why
     * @param {UmqEvent[]} events
     */
    _refuse(frame: Frame, code: number, why: string, events: UmqEvent[]): void;
    /**
     * Say `U` once to an update that nobody wants, then be silent (UM-12, UM-14).
     *
     * @param {string} topic
     * @param {string} id
     */
    _unknownUpdate(topic: string, id: string): void;
    /**
     * The attachments of a call weigh until it is answered (UM-20).
     *
     * @param {{id: string, attachments: Attachment[]}} call
     */
    _weigh(call: {
        id: string;
        attachments: Attachment[];
    }): void;
    /**
     * Is this topic still subscribed, now that the message's turn has come?
     *
     * @param {{type: "update" | "topic-closed", topic: string}} message
     */
    _topicEvent({ type, topic }: {
        type: "update" | "topic-closed";
        topic: string;
    }): boolean;
    /**
     * Put the attribute's change in force; false (and a fault) above the limits (UM-20).
     *
     * @param {Extract<UmqEvent, {type: "set" | "unset"}>} message
     * @param {UmqEvent[]} events
     */
    _attributeEvent(message: Extract<UmqEvent, {
        type: "set" | "unset";
    }>, events: UmqEvent[]): boolean;
}
export type Attachment = import("./attachments.js").Attachment;
export type Ordered = import("./events.js").Ordered;
export type ResultEvent = import("./events.js").ResultEvent;
export type UmqEvent = import("./events.js").UmqEvent;
export type UmqLimits = import("./terms.js").UmqLimits;
export type Frame = import("./wire.js").Frame;
import { Arriving } from "./arriving.js";
