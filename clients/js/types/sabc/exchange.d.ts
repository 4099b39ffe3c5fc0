/**
 * The bytes of a body; TypeError for what is none.
 *
 * @param {unknown} body
 * @returns {Uint8Array}
 */
export function bytesOf(body: unknown): Uint8Array;
/** @typedef {string | Uint8Array | ArrayBuffer | ArrayBufferView} Bytes text is sent as UTF-8 */
/** @typedef {Readonly<Record<string, string>>} Headers */
/** A message or an answer that came. */
export class Message {
    /**
     * @param {{id: string, body: Uint8Array, headers: Headers, truncated: boolean}} received
     */
    constructor({ id, body, headers, truncated }: {
        id: string;
        body: Uint8Array;
        headers: Headers;
        truncated: boolean;
    });
    /** The id of the message, or of the one that it answers. */
    id: string;
    /** The body's bytes. */
    body: Uint8Array<ArrayBufferLike>;
    /** The headers that the protocol does not reserve. */
    headers: Readonly<Record<string, string>>;
    /** It was larger than this side takes, and was cut. */
    truncated: boolean;
    /** The body as text; bytes that are not UTF-8 are replaced. */
    get text(): string;
}
/** An answer to a request of the server. */
export class Reply {
    /**
     * @param {Bytes} body
     * @param {Headers} [headers]
     */
    constructor(body: Bytes, headers?: Headers);
    body: Bytes;
    headers: Readonly<Record<string, string>>;
}
/**
 * text is sent as UTF-8
 */
export type Bytes = string | Uint8Array | ArrayBuffer | ArrayBufferView;
export type Headers = Readonly<Record<string, string>>;
