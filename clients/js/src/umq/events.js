/** What a machine of UMQ tells its caller. */

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("../errors.js").ProtocolFault} ProtocolFault */

/**
 * What a machine tells. Messages come when all their attachments are there.
 *
 * @typedef {{type: "welcome", version: number, payload: string, attachments: Attachment[]}
 *   | {type: "call", id: string, payload: string, attachments: Attachment[]}
 *   | {type: "callback", id: string, callback: string, payload: string, attachments: Attachment[]}
 *   | ResultEvent
 *   | {type: "attachment", result: ResultEvent, attachment: Attachment}
 *   | {type: "error", waiter: unknown, payload: string, number: string}
 *   | {type: "expired", waiter: unknown, number: string}
 *   | {type: "update", topic: string, payload: string, attachments: Attachment[]}
 *   | {type: "topic-closed", topic: string}
 *   | {type: "unsubscribed", topic: string}
 *   | {type: "set", name: string, value: string, attachments: Attachment[]}
 *   | {type: "unset", name: string}
 *   | {type: "fatal", code: number | null, text: string}
 *   | {type: "fault", fault: ProtocolFault}} UmqEvent
 */

/**
 * The answer to a call of ours. `coming` counts the attachments that follow, each in an event of its
 * own, because the call is to be streamed (UM-19).
 *
 * @typedef {{type: "result", waiter: unknown, payload: string, attachments: Attachment[],
 *   number: string, coming?: number}} ResultEvent
 */

/** @typedef {Extract<UmqEvent, {attachments: Attachment[]}> | Extract<UmqEvent, {type: "topic-closed" | "unset"}>} Ordered */

export {};
