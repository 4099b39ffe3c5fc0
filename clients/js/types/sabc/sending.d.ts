/**
 * The verbs of a session. What arrives is followed in the subclass.
 *
 * @extends {TimedMachine<State, SabcEvent>}
 */
export class Sending extends TimedMachine<import("./terms.js").State, import("./events.js").SabcEvent> {
    /**
     * @param {Partial<SabcLimits>} limits
     * @param {number} now
     */
    constructor(limits: Partial<SabcLimits>, now: number);
    limits: import("../limits.js").Limits<{
        readonly "connect-seconds": readonly [10, "s", "from the open socket to CONNECTED"];
        readonly "message-bytes": readonly [number, "bytes", "a message is cut there, twice it closes"];
        readonly "header-lines": readonly [32, "headers", "of a frame"];
        readonly "header-line-bytes": readonly [1024, "bytes", "of one header"];
        readonly "header-block-bytes": readonly [8192, "bytes", "of all headers of a frame"];
        readonly "unfinished-messages": readonly [16, "messages", "whose last part has not come"];
        readonly "unfinished-seconds": readonly [60, "s", "between two parts of a message"];
        readonly "outstanding-requests": readonly [1024, "requests", "unanswered, each direction"];
        readonly "unread-bytes": readonly [number, "bytes", "requests and messages that are being worked on; a quarter pauses"];
        readonly "response-seconds": readonly [60, "s", "for the answer to our request"];
        readonly "session-drain": readonly [30, "s", "after DISCONNECT, while answers are owed"];
        readonly "leave-seconds": readonly [4, "s", "after DISCONNECT, when nothing is owed"];
        readonly "part-bytes": readonly [65536, "bytes", "of a body are sent as one frame"];
    }>;
    bounds: {
        lines: number;
        lineBytes: number;
        blockBytes: number;
    };
    /** @type {Uint8Array[]} */
    _out: Uint8Array[];
    _sessionId: string;
    _number: number;
    /** The largest message that the server has said it accepts. @type {number | null} */
    peerBytes: number | null;
    /** @type {Map<string, {waiter: unknown, deadline: number}>} */
    _pending: Map<string, {
        waiter: unknown;
        deadline: number;
    }>;
    /** @type {Map<string, boolean>} The server's requests by id: whether they were cut. */
    _unanswered: Map<string, boolean>;
    /** Originals of ours whose last part was not sent. */
    _sending: number;
    /** Requests of ours without an answer. */
    get outstanding(): number;
    /** Return and forget the messages to send: text, or bytes if the body is not UTF-8 (SA-25). */
    outputs(): (string | Uint8Array<ArrayBufferLike>)[];
    /**
     * Ask for a session (SA-07, SA-08); TypeError for what headers cannot carry.
     *
     * @param {string} clientId
     * @param {string | null} [passcode]
     * @param {Headers} [headers]
     */
    connect(clientId: string, passcode?: string | null, headers?: Headers): void;
    /**
     * An application's headers as lines; throws for what may not be sent (SA-03).
     *
     * @param {Headers} headers
     * @param {(name: string) => boolean} [reserved]
     */
    _lines(headers: Headers, reserved?: (name: string) => boolean): string;
    /**
     * @param {string} lines
     * @param {Uint8Array} body
     * @param {boolean} final
     */
    _sendPart(lines: string, body: Uint8Array, final: boolean): number;
    /**
     * Queue a message in as few frames as `part-bytes` allows (SA-18); TypeError for a body that the
     * framing cannot carry (SA-21). `extra` stands on the first frame alone.
     *
     * @param {string} lines
     * @param {string} extra
     * @param {Uint8Array} body
     */
    _sendMessage(lines: string, extra: string, body: Uint8Array): void;
    /** How large a message of ours may be; a server that does not say is assumed to be like us. */
    get sentBytesMax(): number;
    /**
     * Throw LimitExceeded for what the peer would cut, and queue nothing: acknowledged means whole.
     *
     * @param {string} lines
     * @param {string} extra
     * @param {Uint8Array} body
     */
    _sendOriginal(lines: string, extra: string, body: Uint8Array): void;
    /**
     * @param {boolean} waiting
     * @param {Headers} headers
     */
    _original(waiting: boolean, headers: Headers): {
        extra: string;
        id: string;
    };
    /**
     * Send a message that wants an answer (SA-14 … SA-16); returns its id.
     *
     * @param {Uint8Array} body
     * @param {unknown} waiter comes back with the answer
     * @param {number} deadline when `expired` comes instead
     * @param {Headers} [headers]
     */
    request(body: Uint8Array, waiter: unknown, deadline: number, headers?: Headers): string;
    /**
     * @param {string} id
     * @param {unknown} waiter
     * @param {number} deadline
     */
    _await(id: string, waiter: unknown, deadline: number): void;
    /**
     * Send a message that wants no answer (SA-17); returns its id.
     *
     * @param {Uint8Array} body
     * @param {Headers} [headers]
     */
    sendOnly(body: Uint8Array, headers?: Headers): string;
    /**
     * Begin a request whose body comes in pieces (SA-18).
     *
     * @param {unknown} waiter
     * @param {number} deadline
     * @param {Headers} [headers]
     */
    openRequest(waiter: unknown, deadline: number, headers?: Headers): Outgoing;
    /**
     * Nobody waits for this answer any more.
     *
     * @param {string} id
     */
    forget(id: string): boolean;
    /**
     * Answer the server's request `id` (SA-16), with nothing for an acknowledgement.
     *
     * @param {string} id
     * @param {Uint8Array} [body]
     * @param {Headers} [headers]
     */
    answer(id: string, body?: Uint8Array, headers?: Headers): void;
    /**
     * Answer a request with ERROR (SA-16).
     *
     * @param {string} id
     * @param {number | string} code
     * @param {string} text
     */
    refuse(id: string, code: number | string, text: string): void;
    /**
     * Tell the server that its message `id`, which wants no answer, was not taken (SA-24).
     *
     * @param {string} id
     * @param {number} code
     * @param {string} text
     */
    refuseOriginal(id: string, code: number, text: string): void;
    /**
     * Tell the server of an error that answers nothing (SA-24).
     *
     * @param {number | string} code
     * @param {string} text
     * @param {Headers} [headers]
     */
    sendError(code: number | string, text: string, headers?: Headers): void;
    /**
     * @param {number | string} code
     * @param {string} text
     * @param {string | null} ref
     * @param {string} [headers]
     */
    _sendError(code: number | string, text: string, ref: string | null, headers?: string): void;
    /** Ask the server to answer what it has and to close (SA-12). */
    disconnect(): void;
    /** Close at once: DISCONNECTING if there is a session (SA-13). */
    stop(): void;
}
export type SabcEvent = import("./events.js").SabcEvent;
export type SabcLimits = import("./terms.js").SabcLimits;
export type State = import("./terms.js").State;
export type Headers = Readonly<Record<string, string>>;
import { TimedMachine } from "../machine.js";
import { Outgoing } from "./outgoing.js";
