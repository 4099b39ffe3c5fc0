/** sABC's limits, states, transitions and misplaced headers, as data. */

import { RESERVED } from "./wire.js";

/** The limits of one session; the option `limits` changes them by name (SA-27). */
export const LIMITS = /** @type {const} */ ({
  "connect-seconds": [10, "s", "from the open socket to CONNECTED"],
  "message-bytes": [1 << 20, "bytes", "a message is cut there, twice it closes"],
  "header-block-bytes": [8192, "bytes", "of all headers of a frame"],
  "unfinished-messages": [16, "messages", "whose last part has not come"],
  "outstanding-requests": [1024, "requests", "unanswered, each direction"],
  "backlog-bytes": [64 << 20, "bytes", "requests and messages that are being worked on; a quarter pauses"],
  "response-seconds": [60, "s", "for the answer to our request"],
  "part-bytes": [65536, "bytes", "of a body are sent as one frame"],
});

/** @typedef {import("../limits.js").Limits<typeof LIMITS>} SabcLimits */

/** The next part of a message comes within this time (SA-27). */
export const UNFINISHED_SECONDS = 60;

/** A server that owes nothing closes within this time after DISCONNECT (SA-12). */
export const LEAVE_SECONDS = 4;

/** @typedef {"idle" | "waiting" | "open" | "draining" | "closed"} State */

const ENDS = { fault: "closed", stopped: "closed", lost: "closed" };

/**
 * State → event → next state. The server's commands are upper case; what we do is lower case. A
 * server's CONNECT and DISCONNECT are in no row: they are its fault (SA-05).
 *
 * @type {Readonly<Record<State, Readonly<Record<string, State>>>>}
 */
export const CLIENT = /** @type {any} */ ({
  idle: { "connect-sent": "waiting", ERROR: "idle", ...ENDS },
  waiting: { CONNECTED: "open", ERROR: "idle", ...ENDS },
  open: {
    MESSAGE: "open",
    ERROR: "open",
    "message-sent": "open",
    "answer-sent": "open",
    "disconnect-sent": "draining",
    DISCONNECTING: "closed",
    ...ENDS,
  },
  draining: {
    MESSAGE: "draining",
    ERROR: "draining",
    "answer-sent": "draining",
    DISCONNECTING: "closed",
    ...ENDS,
  },
  closed: {},
});

/** @param {string[]} allowed */
const but = (...allowed) => new Set([...RESERVED].filter((name) => !allowed.includes(name)));

/** Reserved headers that must not stand on a command (SA-06). @type {Record<string, Set<string>>} */
export const MISPLACED = {
  CONNECTED: but("session-id", "session-expiry"),
  DISCONNECTING: but("session-id"),
  MESSAGE: but("session-id", "msg-id", "ref-msg-id", "send-only", "msg-more"),
  ERROR: new Set(),
};
