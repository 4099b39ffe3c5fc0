/** UMQ over WebSocket: calls, callbacks, topics and attributes, with attachments. */

export { UmqClient } from "./client.js";
export { Reply, Stored, withRequest } from "./exchange.js";
export { Topic, UmqSession } from "./session.js";
export { AttachmentStream, pieces } from "./streams.js";
export { Subscription } from "./subscription.js";
export * from "../errors.js";

/** @typedef {import("./client.js").UmqOptions} UmqOptions */
/** @typedef {import("./client.js").CallOptions} CallOptions */
/** @typedef {import("./client.js").ClientLimits} ClientLimits */
/** @typedef {import("./exchange.js").Answer} Answer */
/** @typedef {import("./exchange.js").Answering} Answering */
/** @typedef {import("./exchange.js").Request} Request */
/** @typedef {import("./exchange.js").Sendable} Sendable */
/** @typedef {import("./exchange.js").Update} Update */
/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./subscription.js").EndReason} EndReason */
/** @typedef {import("./session.js").Attribute} Attribute */
/** @typedef {import("../reconnect.js").ClientState} ClientState */
