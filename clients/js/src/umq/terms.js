/** UMQ's limits, states and transitions, as data. */

/** The limits of one session; the option `limits` changes them by name (UM-19, UM-20). */
export const LIMITS = /** @type {const} */ ({
  "payload-characters": [1 << 20, "characters", "text of one command"],
  attachments: [32, "attachments", "of one command"],
  "hello-seconds": [10, "s", "from the open socket to the server's W"],
  "attachment-bytes": [16 << 20, "bytes", "one attachment"],
  "attachments-bytes": [64 << 20, "bytes", "attachments that wait for the rest of their message"],
  "backlog-bytes": [64 << 20, "bytes", "updates and streamed attachments that nobody has taken; a quarter pauses"],
  "attachment-seconds": [60, "s", "the next attachment's arrival"],
  announcements: [1024, "messages", "with attachments to come"],
  "waiting-messages": [1024, "messages", "behind such attachments"],
  calls: [1024, "calls", "of the server, not answered yet"],
  "calls-bytes": [64 << 20, "bytes", "such calls, with attachments"],
  "own-calls": [4096, "calls", "of ours, not answered yet"],
  "call-seconds": [60, "s", "for the answer to a call"],
  callbacks: [1024, "callbacks", "registered here"],
  topics: [1024, "topics", "the server subscribed here"],
  "own-subscriptions": [1024, "topics", "we subscribed"],
  attributes: [256, "attributes", "of the server"],
  "attributes-bytes": [1 << 20, "bytes", "names, values and attachments of these"],
});

/** @typedef {import("../limits.js").Limits<typeof LIMITS>} UmqLimits */

/** An attachment of ours that is not filled by then is sent as `-` (UM-04). */
export const FILL_SECONDS = 45;

/** Late updates of a topic that we left are dropped silently for this long (UM-14). */
export const CLOSING_SECONDS = 60;

export const CLOSING_TOPICS = 1024;

/** @typedef {"start" | "awaiting-welcome" | "open" | "closed"} State */

const ENDS = { fatal: "closed", "fatal-sent": "closed", faulted: "closed", lost: "closed" };

const SESSION = Object.fromEntries(
  [
    "call",
    "callback",
    "result",
    "error",
    "update",
    "close-topic",
    "unsubscribe",
    "set",
    "unset",
    "attachment-error",
    "attachment",
    "command-sent",
  ].map((event) => [event, "open"]),
);

/**
 * State → event → next state. The peer's commands have their own names; what we do ourselves ends in
 * `-sent`. A command that is in no row of its state is the peer's fault.
 *
 * @type {Readonly<Record<State, Readonly<Record<string, State>>>>}
 */
export const CLIENT = /** @type {any} */ ({
  start: { "hello-sent": "awaiting-welcome", ...ENDS },
  "awaiting-welcome": { welcome: "open", ...ENDS },
  open: { ...SESSION, ...ENDS },
  closed: {},
});
