/** @typedef {import("./events.js").SabcEvent} SabcEvent */
/** @typedef {import("./incoming.js").Incoming} Incoming */
/** @typedef {import("./terms.js").SabcLimits} SabcLimits */
/** @typedef {import("./wire.js").Frame} Frame */
/** One session of a client. */
export class Machine extends Sending {
    /** @param {{limits?: Partial<SabcLimits>, now?: number}} [options] */
    constructor({ limits, now }?: {
        limits?: Partial<SabcLimits>;
        now?: number;
    });
    /** @type {Map<string, Incoming>} */
    _unfinished: Map<string, Incoming>;
    _paused: boolean;
    /**
     * Follow one WebSocket message.
     *
     * @param {string | Uint8Array} message
     * @param {number} now
     * @returns {SabcEvent[]}
     */
    receive(message: string | Uint8Array, now: number): SabcEvent[];
    /**
     * The server broke the protocol: ERROR with a code, and no more (SA-06).
     *
     * @param {ProtocolFault} fault
     * @param {SabcEvent[]} events
     * @param {string | null} [ref]
     */
    _fail(fault: ProtocolFault, events: SabcEvent[], ref?: string | null): void;
    /**
     * A frame's meaning is wrong: ERROR with a code, the connection stays (SA-06).
     *
     * @param {number} code
     * @param {string} text
     * @param {SabcEvent[]} events
     * @param {string | null} ref
     * @param {string | null} id
     */
    _refuse(code: number, text: string, events: SabcEvent[], ref: string | null, id: string | null): void;
    /**
     * Whether the table allows `frame` here, and whether it belongs to this session.
     *
     * @param {Frame} frame
     * @param {SabcEvent[]} events
     */
    _admit({ command, headers }: Frame, events: SabcEvent[]): boolean;
    /** @param {Frame} frame */
    _misplaced({ command, headers }: Frame): string | null;
    /**
     * @param {Frame} frame
     * @param {SabcEvent[]} events
     */
    _command(frame: Frame, events: SabcEvent[]): void;
    /**
     * @param {Map<string, string>} headers of CONNECTED
     * @param {SabcEvent[]} events
     */
    _granted(headers: Map<string, string>, events: SabcEvent[]): void;
    /**
     * A MESSAGE or ERROR.
     *
     * @param {Frame} frame
     * @param {SabcEvent[]} events
     */
    _bodied(frame: Frame, events: SabcEvent[]): void;
    /** @param {Frame} frame */
    _openError({ headers }: Frame): import("./incoming.js").Incoming;
    /**
     * @param {Frame} frame
     * @param {SabcEvent[]} events
     */
    _openMessage(frame: Frame, events: SabcEvent[]): import("./incoming.js").Incoming;
    /**
     * Refuse a MESSAGE whose headers make no sense (SA-06, SA-14 … SA-17).
     *
     * @param {Frame} frame
     * @param {Incoming} incoming
     * @param {boolean} first
     * @param {SabcEvent[]} events
     */
    _examine(frame: Frame, incoming: Incoming, first: boolean, events: SabcEvent[]): void;
    /**
     * So many bytes more of a message came (SA-22).
     *
     * @param {Incoming} incoming
     * @param {number} bytes
     * @param {SabcEvent[]} events
     * @param {boolean} [trim] the body may end within a character
     */
    _grow(incoming: Incoming, bytes: number, events: SabcEvent[], trim?: boolean): void;
    /**
     * @param {Incoming} incoming
     * @param {Frame} frame
     * @param {boolean} more
     * @param {SabcEvent[]} events
     */
    _closeFrame(incoming: Incoming, frame: Frame, more: boolean, events: SabcEvent[]): void;
    /**
     * A part is complete; keep its message until the next, unless too many wait already (SA-27).
     *
     * @param {Incoming} incoming
     * @param {SabcEvent[]} events
     */
    _suspend(incoming: Incoming, events: SabcEvent[]): void;
    /**
     * @param {Incoming} incoming
     * @param {Uint8Array} body
     * @param {SabcEvent[]} events
     */
    _deliver({ key, id, response, headers, sendOnly, cut: truncated }: Incoming, body: Uint8Array, events: SabcEvent[]): void;
    /**
     * An ERROR refuses the session, fails the request it names, or goes to the application (SA-16).
     *
     * @param {Record<string, string>} headers
     * @param {Uint8Array} body
     * @param {SabcEvent[]} events
     */
    _errorReceived(headers: Record<string, string>, body: Uint8Array, events: SabcEvent[]): void;
    /** The connection is gone: the waiters of all requests that have no answer, oldest first. */
    lost(): unknown[];
}
export type SabcEvent = import("./events.js").SabcEvent;
export type Incoming = import("./incoming.js").Incoming;
export type SabcLimits = import("./terms.js").SabcLimits;
export type Frame = import("./wire.js").Frame;
import { Sending } from "./sending.js";
import { ProtocolFault } from "../errors.js";
