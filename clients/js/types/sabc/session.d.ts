/** @typedef {import("./exchange.js").Headers} Headers */
/** @typedef {import("./exchange.js").Bytes} Bytes */
/** @typedef {import("./events.js").SabcEvent} SabcEvent */
/** @typedef {string | Uint8Array | ArrayBuffer | ArrayBufferView | Reply | void | null | undefined} Answered */
/**
 * What the application does for the server.
 *
 * @typedef {object} Serving
 * @property {(message: Message) => Answered | Promise<Answered>} [onRequest] answers a request of the
 *   server: with a body, a Reply, or nothing (an acknowledgement); a Refused that it throws is told
 *   to the server, any other error is 500 there
 * @property {(message: Message) => unknown} [onMessage] is given messages that want no answer; when it
 *   returns a promise, its message counts as taken when that is settled
 * @property {(error: Refused) => void} [onError] is told errors of the server that answer nothing
 */
/**
 * @typedef {object} RequestOptions
 * @property {Headers} [headers]
 * @property {number} [timeout] seconds for all of it; by default the limit `response-seconds`
 * @property {AbortSignal} [signal] gives the request up
 */
/** @typedef {Bytes | AsyncIterable<Bytes>} Body in pieces: each is sent when it is there */
/**
 * @typedef {object} Waiter
 * @property {(message: Message) => void} resolve
 * @property {(error: unknown) => void} reject
 * @property {import("./outgoing.js").Outgoing} [outgoing] a body that comes in pieces
 */
/**
 * One session; {@link SabcClient} makes a new one each time it comes back.
 *
 * @extends {LinkedSession<Machine>}
 */
export class SabcSession extends LinkedSession<Machine> {
    /**
     * @param {import("../world.js").Socket} socket an open one
     * @param {object} options
     * @param {import("../world.js").World} options.world
     * @param {Partial<import("./terms.js").SabcLimits>} options.limits
     * @param {Serving} options.serving
     * @param {string} options.clientId
     * @param {string | null} options.passcode
     * @param {Headers} options.headers
     */
    constructor(socket: import("../world.js").Socket, { world, limits, serving, clientId, passcode, headers }: {
        world: import("../world.js").World;
        limits: Partial<import("./terms.js").SabcLimits>;
        serving: Serving;
        clientId: string;
        passcode: string | null;
        headers: Headers;
    });
    _serving: Serving;
    /** When the server ends the session at the latest, or null. @type {Date | null} */
    expires: Date | null;
    /** Messages that the program works on, and (by themselves) requests. */
    _unread: Unread;
    _reading: Reading;
    _requests: Unread;
    /** Messages are being refused, and the program has been told so. */
    _refusing: boolean;
    /** @type {Promise<void> | null} */
    _closed: Promise<void> | null;
    /** What the server said with CONNECTED. @type {Headers} */
    headers: Headers;
    /**
     * Let the machine do something now, and send what it says.
     *
     * @template T
     * @param {(machine: Machine) => T} verb
     */
    _do<T>(verb: (machine: Machine) => T): T;
    /** @type {{[type in SabcEvent["type"]]: (event: any) => void}} */
    _on: { [type in SabcEvent["type"]]: (event: any) => void; };
    /**
     * @param {Waiter} waiter
     * @param {(waiter: Waiter) => void} settle
     */
    _settled(waiter: Waiter, settle: (waiter: Waiter) => void): void;
    /**
     * There will be no answer: the rest of a body is not sent.
     *
     * @param {Waiter} waiter
     * @param {unknown} error
     */
    _failed(waiter: Waiter, error: unknown): void;
    /** The socket is not read, because the program has not taken what arrived. */
    get paused(): boolean;
    /** @param {Message} message that wants no answer */
    _heard(message: Message): void;
    /** @param {Message} message */
    _serve(message: Message): Promise<void>;
    /**
     * Send a message that wants an answer (SA-16); see {@link SabcClient.request}.
     *
     * @param {Body} body
     * @param {RequestOptions} [options]
     * @returns {Promise<Message>}
     */
    request(body: Body, { headers, timeout, signal }?: RequestOptions): Promise<Message>;
    /**
     * @param {import("./outgoing.js").Outgoing} outgoing
     * @param {AsyncIterable<Bytes>} pieces
     * @param {(error: unknown) => void} failed
     */
    _stream(outgoing: import("./outgoing.js").Outgoing, pieces: AsyncIterable<Bytes>, failed: (error: unknown) => void): Promise<void>;
    /**
     * Send a message that wants no answer (SA-17).
     *
     * @param {Bytes} body
     * @param {{headers?: Headers}} [options]
     */
    sendOnly(body: Bytes, { headers }?: {
        headers?: Headers;
    }): void;
    /**
     * Tell the server of an error that answers nothing (SA-24).
     *
     * @param {number | string} code
     * @param {string} text
     * @param {{headers?: Headers}} [options]
     */
    sendError(code: number | string, text: string, { headers }?: {
        headers?: Headers;
    }): void;
    /**
     * Ask the server to answer what it has and to close (SA-12); fires when it has.
     *
     * @returns {Promise<void>}
     */
    close(): Promise<void>;
    _close(): Promise<void>;
    /** Close at once. */
    abort(): void;
}
export type Headers = import("./exchange.js").Headers;
export type Bytes = import("./exchange.js").Bytes;
export type SabcEvent = import("./events.js").SabcEvent;
export type Answered = string | Uint8Array | ArrayBuffer | ArrayBufferView | Reply | void | null | undefined;
/**
 * What the application does for the server.
 */
export type Serving = {
    /**
     * answers a request of the
     * server: with a body, a Reply, or nothing (an acknowledgement); a Refused that it throws is told
     * to the server, any other error is 500 there
     */
    onRequest?: ((message: Message) => Answered | Promise<Answered>) | undefined;
    /**
     * is given messages that want no answer; when it
     * returns a promise, its message counts as taken when that is settled
     */
    onMessage?: ((message: Message) => unknown) | undefined;
    /**
     * is told errors of the server that answer nothing
     */
    onError?: ((error: Refused) => void) | undefined;
};
export type RequestOptions = {
    headers?: Readonly<Record<string, string>> | undefined;
    /**
     * seconds for all of it; by default the limit `response-seconds`
     */
    timeout?: number | undefined;
    /**
     * gives the request up
     */
    signal?: AbortSignal | undefined;
};
/**
 * in pieces: each is sent when it is there
 */
export type Body = Bytes | AsyncIterable<Bytes>;
export type Waiter = {
    resolve: (message: Message) => void;
    reject: (error: unknown) => void;
    /**
     * a body that comes in pieces
     */
    outgoing?: import("./outgoing.js").Outgoing | undefined;
};
import { Machine } from "./machine.js";
import { LinkedSession } from "../session.js";
import { Unread } from "../unread.js";
import { Reading } from "../reading.js";
import { Message } from "./exchange.js";
import { Reply } from "./exchange.js";
import { Refused } from "../errors.js";
