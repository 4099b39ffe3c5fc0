/** What a machine of sABC tells its caller. */

/** @typedef {import("../errors.js").ProtocolFault} ProtocolFault */
/** @typedef {import("./sending.js").Headers} Headers */

/**
 * @typedef {object} Received
 * @property {string} id
 * @property {Headers} headers those that the protocol does not reserve
 * @property {Uint8Array} body
 * @property {boolean} truncated it was above `message-bytes` and was cut
 */

/**
 * @typedef {{type: "granted", expires: Date | null, headers: Headers}
 *   | {type: "refused", code: string | null, text: string}
 *   | {type: "request" | "send-only"} & Received
 *   | {type: "response", waiter: unknown} & Received
 *   | {type: "failed", id: string, waiter: unknown, code: string | null, text: string}
 *   | {type: "expired", id: string, waiter: unknown}
 *   | {type: "error", code: string | null, body: Uint8Array, headers: Headers}
 *   | {type: "frame-refused", code: number, text: string, id: string | null}
 *   | {type: "frame-discarded", id: string | null}
 *   | {type: "abandoned", id: string | null}
 *   | {type: "disconnecting"}
 *   | {type: "drain-timed-out"}
 *   | {type: "fault", fault: ProtocolFault}} SabcEvent
 */

export {};
