/**
 * The last part is kept back until the next one comes: only the last frame of a message carries the
 * end mark, and no part may begin with NUL (SA-18, SA-21).
 */
export class Outgoing {
    /**
     * @param {Sending} machine
     * @param {string} lines stand on every frame
     * @param {string} extra stands on the first one
     * @param {string | null} id of a request that was opened; null for a body that is all here
     */
    constructor(machine: Sending, lines: string, extra: string, id: string | null);
    _machine: import("./sending.js").Sending;
    _lines: string;
    _extra: string;
    id: string | null;
    _kept: Uint8Array<ArrayBuffer>;
    _before: Uint8Array<ArrayBuffer>;
    _sent: number;
    _begun: boolean;
    finished: boolean;
    /**
     * Throw TypeError if these bytes cannot be sent next, LimitExceeded if the message would be
     * larger with them than the peer accepts; nothing is sent then.
     *
     * @param {Uint8Array} bytes
     */
    _check(bytes: Uint8Array): void;
    /**
     * Send more of the body.
     *
     * @param {Uint8Array} bytes
     */
    write(bytes: Uint8Array): void;
    /**
     * @param {Uint8Array} body
     * @param {boolean} final
     */
    _part(body: Uint8Array, final: boolean): void;
    /** Send the last part. */
    finish(): void;
    /** Never finish it: an error frame has the peer drop it (SA-20). */
    abort(): void;
    _release(): boolean;
}
export type Sending = import("./sending.js").Sending;
