/** A WebSocket over WebSocketStream, which Chromium has: it can be paused, as a WebSocket cannot. */
/** What a session uses of a WebSocket, see {@link import("./world.js").Socket}. */
export class StreamSocket {
    /**
     * @param {string} url
     * @param {string | string[]} [protocols]
     */
    constructor(url: string, protocols?: string | string[]);
    binaryType: string;
    /** Bytes, and characters of text, that the stream has not accepted. */
    bufferedAmount: number;
    /** @type {((event: any) => void) | null} */
    onopen: ((event: any) => void) | null;
    /** @type {((event: any) => void) | null} */
    onmessage: ((event: any) => void) | null;
    /** @type {((event: any) => void) | null} */
    onclose: ((event: any) => void) | null;
    /** @type {((event: any) => void) | null} */
    onerror: ((event: any) => void) | null;
    /** @type {Promise<void> | null} While it is paused. */
    _paused: Promise<void> | null;
    _resume: () => void;
    /** @type {WritableStreamDefaultWriter | null} */
    _writer: WritableStreamDefaultWriter | null;
    _stream: any;
    /** All of its life. Never rejected. */
    _live(): Promise<void>;
    /** @param {ReadableStreamDefaultReader<any>} reader */
    _read(reader: ReadableStreamDefaultReader<any>): Promise<void>;
    /** Read nothing more until `resume`: the peer notices. */
    pause(): void;
    resume(): void;
    /** @param {string | Uint8Array} data */
    send(data: string | Uint8Array): void;
    /**
     * @param {number} [closeCode]
     * @param {string} [reason]
     */
    close(closeCode?: number, reason?: string): void;
}
