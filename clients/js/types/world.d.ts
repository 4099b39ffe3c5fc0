/**
 * @param {SocketClass} [given] the class of sockets; else the best that the platform has
 * @param {(error: unknown) => void} [report] by default `reportError` in pages, `console.error` elsewhere
 * @returns {World}
 */
export function realWorld(given?: SocketClass, report?: (error: unknown) => void): World;
/**
 * What a session uses of a WebSocket: browsers, Node and the package `ws` have it.
 *
 * @typedef {object} Socket
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {(data: any) => void} send
 * @property {(code?: number, reason?: string) => void} close
 * @property {() => void} [pause] not all have it: read nothing until `resume`
 * @property {() => void} [resume]
 * @property {() => void} [terminate] not all have it: close without a handshake
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onclose
 * @property {((event: any) => void) | null} onerror
 */
/** @typedef {new (url: string, protocols?: string | string[]) => any} SocketClass */
/**
 * @typedef {object} World
 * @property {() => number} now seconds of a clock that never goes back
 * @property {(seconds: number, f: () => void) => () => void} after call `f` later; returns what cancels it
 * @property {() => number} random from 0 to 1
 * @property {(error: unknown) => void} report an error in a hook, which is its author's to see
 * @property {(url: string, protocol: string, seconds: number, signal: AbortSignal) => Promise<Socket>} open
 *   an open socket; the signal ends the attempt; rejected with Hopeless for what no attempt can reach
 */
/** No later attempt can succeed, because of what the program has asked for: `cause` says what that is. */
export class Hopeless extends Error {
    /** @param {unknown} cause */
    constructor(cause: unknown);
    cause: Error;
}
/**
 * What a session uses of a WebSocket: browsers, Node and the package `ws` have it.
 */
export type Socket = {
    binaryType: string;
    bufferedAmount: number;
    send: (data: any) => void;
    close: (code?: number, reason?: string) => void;
    /**
     * not all have it: read nothing until `resume`
     */
    pause?: (() => void) | undefined;
    resume?: (() => void) | undefined;
    /**
     * not all have it: close without a handshake
     */
    terminate?: (() => void) | undefined;
    onopen: ((event: any) => void) | null;
    onmessage: ((event: any) => void) | null;
    onclose: ((event: any) => void) | null;
    onerror: ((event: any) => void) | null;
};
export type SocketClass = new (url: string, protocols?: string | string[]) => any;
export type World = {
    /**
     * seconds of a clock that never goes back
     */
    now: () => number;
    /**
     * call `f` later; returns what cancels it
     */
    after: (seconds: number, f: () => void) => () => void;
    /**
     * from 0 to 1
     */
    random: () => number;
    /**
     * an error in a hook, which is its author's to see
     */
    report: (error: unknown) => void;
    /**
     *   an open socket; the signal ends the attempt; rejected with Hopeless for what no attempt can reach
     */
    open: (url: string, protocol: string, seconds: number, signal: AbortSignal) => Promise<Socket>;
};
