/** sABC over WebSocket: requests and answers in both directions, messages in several frames. */

export { SabcClient } from "./client.js";
export { Message, Reply } from "./exchange.js";
export { SabcSession } from "./session.js";
export * from "../errors.js";

/** @typedef {import("./client.js").SabcOptions} SabcOptions */
/** @typedef {import("./client.js").RequestOptions} RequestOptions */
/** @typedef {import("./client.js").ClientLimits} ClientLimits */
/** @typedef {import("./exchange.js").Headers} Headers */
/** @typedef {import("./exchange.js").Bytes} Bytes */
/** @typedef {import("./session.js").Answered} Answered */
/** @typedef {import("./session.js").Body} Body */
/** @typedef {import("../reconnect.js").ClientState} ClientState */
