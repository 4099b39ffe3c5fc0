/** @typedef {import("./exchange.js").Headers} Headers */
/** @typedef {import("./exchange.js").Message} Message */
/** @typedef {import("./exchange.js").Bytes} Bytes */
/** @typedef {import("./session.js").Body} Body */
/**
 * `safe`: the request may be made twice, so it is repeated when a session ends before its answer.
 *
 * @typedef {import("./session.js").RequestOptions & {safe?: boolean}} RequestOptions
 */
/** @typedef {Partial<import("./terms.js").SabcLimits & import("../limits.js").Limits<typeof COMEBACK_LIMITS>>} ClientLimits */
/**
 * @typedef {object} Identity
 * @property {string} clientId
 * @property {string} [passcode]
 * @property {Headers} [headers] of CONNECT
 */
/**
 * @typedef {import("../comeback.js").ComebackOptions
 *   & import("./session.js").Serving
 *   & Identity
 *   & {limits?: ClientLimits, onOpen?: (session: SabcSession) => void}} SabcOptions
 */
/** @extends {Comeback<SabcSession>} */
export class SabcClient extends Comeback<SabcSession> {
    /**
     * Connect; rejected with ConnectionClosed or SessionRefused if the first attempt fails.
     *
     * @param {string | URL} url
     * @param {SabcOptions} options
     */
    static connect(url: string | URL, options: SabcOptions): Promise<SabcClient>;
    /**
     * A client that has not connected yet: `start` makes it. Throws RangeError for an unknown limit.
     *
     * @param {string | URL} url `ws://…` or `wss://…`
     * @param {SabcOptions} options
     */
    constructor(url: string | URL, options: SabcOptions);
    _sabc: SabcOptions;
    /** @type {Partial<import("./terms.js").SabcLimits>} */
    _limits: Partial<import("./terms.js").SabcLimits>;
    /**
     * @param {import("../world.js").Socket} socket
     * @override
     */
    override _session(socket: import("../world.js").Socket): SabcSession;
    /**
     * Send a message that wants an answer, in the session that stands or in the next one (SA-16). With
     * a queue behind the server, an answer says that the message is on disk.
     *
     * A body is text, bytes, or an async iterable of these whose pieces are sent as they come.
     * Rejected with Refused (the server answered ERROR, `code` says which; "truncated" if it took only
     * a part), TimedOut, ConnectionClosed, LimitExceeded, or TypeError for headers and bodies that
     * cannot be sent.
     *
     * @param {Body} body
     * @param {RequestOptions} [options]
     * @returns {Promise<Message>}
     */
    request(body: Body, { timeout, safe, ...options }?: RequestOptions): Promise<Message>;
    /**
     * Send a message that wants no answer (SA-17), in the session that stands or in the next one; fires
     * when it is handed to the socket, which promises nothing.
     *
     * @param {Bytes} body
     * @param {{headers?: Headers, timeout?: number}} [options]
     * @returns {Promise<void>}
     */
    sendOnly(body: Bytes, { headers, timeout }?: {
        headers?: Headers;
        timeout?: number;
    }): Promise<void>;
    /**
     * Tell the server of an error that answers nothing (SA-24); throws ConnectionClosed without a
     * session.
     *
     * @param {number | string} code
     * @param {string} text
     * @param {{headers?: Headers}} [options]
     */
    sendError(code: number | string, text: string, options?: {
        headers?: Headers;
    }): void;
}
export type Headers = import("./exchange.js").Headers;
export type Message = import("./exchange.js").Message;
export type Bytes = import("./exchange.js").Bytes;
export type Body = import("./session.js").Body;
/**
 * `safe`: the request may be made twice, so it is repeated when a session ends before its answer.
 */
export type RequestOptions = import("./session.js").RequestOptions & {
    safe?: boolean;
};
export type ClientLimits = Partial<import("./terms.js").SabcLimits & import("../limits.js").Limits<typeof COMEBACK_LIMITS>>;
export type Identity = {
    clientId: string;
    passcode?: string | undefined;
    /**
     * of CONNECT
     */
    headers?: Readonly<Record<string, string>> | undefined;
};
export type SabcOptions = import("../comeback.js").ComebackOptions & import("./session.js").Serving & Identity & {
    limits?: ClientLimits;
    onOpen?: (session: SabcSession) => void;
};
import { SabcSession } from "./session.js";
import { Comeback } from "../comeback.js";
import { COMEBACK_LIMITS } from "../comeback.js";
