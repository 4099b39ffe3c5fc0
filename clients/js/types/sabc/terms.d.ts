/** The limits of one session; the option `limits` changes them by name (SA-27). */
export const LIMITS: {
    readonly "connect-seconds": readonly [10, "s", "from the open socket to CONNECTED"];
    readonly "message-bytes": readonly [number, "bytes", "a message is cut there, twice it closes"];
    readonly "header-lines": readonly [32, "headers", "of a frame"];
    readonly "header-line-bytes": readonly [1024, "bytes", "of one header"];
    readonly "header-block-bytes": readonly [8192, "bytes", "of all headers of a frame"];
    readonly "unfinished-messages": readonly [16, "messages", "whose last part has not come"];
    readonly "unfinished-seconds": readonly [60, "s", "between two parts of a message"];
    readonly "outstanding-requests": readonly [1024, "requests", "unanswered, each direction"];
    readonly "unread-bytes": readonly [number, "bytes", "requests and messages that are being worked on; a quarter pauses"];
    readonly "response-seconds": readonly [60, "s", "for the answer to our request"];
    readonly "session-drain": readonly [30, "s", "after DISCONNECT, while answers are owed"];
    readonly "leave-seconds": readonly [4, "s", "after DISCONNECT, when nothing is owed"];
    readonly "part-bytes": readonly [65536, "bytes", "of a body are sent as one frame"];
};
/**
 * State → event → next state. The server's commands are upper case; what we do is lower case. A
 * server's CONNECT and DISCONNECT are in no row: they are its fault (SA-05).
 *
 * @type {Readonly<Record<State, Readonly<Record<string, State>>>>}
 */
export const CLIENT: Readonly<Record<State, Readonly<Record<string, State>>>>;
/** Reserved headers that must not stand on a command (SA-06). @type {Record<string, Set<string>>} */
export const MISPLACED: Record<string, Set<string>>;
export type SabcLimits = import("../limits.js").Limits<typeof LIMITS>;
export type State = "idle" | "waiting" | "open" | "draining" | "closed";
