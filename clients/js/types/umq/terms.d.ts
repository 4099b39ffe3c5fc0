/** UMQ's limits, states and transitions, as data. */
/** The limits of one session; the option `limits` changes them by name (UM-19, UM-20). */
export const LIMITS: {
    readonly "payload-characters": readonly [number, "characters", "text of one command"];
    readonly attachments: readonly [32, "attachments", "of one command"];
    readonly "hello-seconds": readonly [10, "s", "from the open socket to the server's W"];
    readonly "attachment-bytes": readonly [number, "bytes", "one attachment"];
    readonly "attachments-bytes": readonly [number, "bytes", "attachments that wait for the rest of their message"];
    readonly "unread-bytes": readonly [number, "bytes", "updates and streamed attachments that nobody has taken; a quarter pauses"];
    readonly "attachment-seconds": readonly [60, "s", "the next attachment's arrival"];
    readonly "attachment-fill-seconds": readonly [45, "s", "ours, before - takes its place"];
    readonly announcements: readonly [1024, "messages", "with attachments to come"];
    readonly "waiting-messages": readonly [1024, "messages", "behind such attachments"];
    readonly calls: readonly [1024, "calls", "of the server, not answered yet"];
    readonly "calls-bytes": readonly [number, "bytes", "such calls, with attachments"];
    readonly "own-calls": readonly [4096, "calls", "of ours, not answered yet"];
    readonly "call-seconds": readonly [60, "s", "for the answer to a call"];
    readonly callbacks: readonly [1024, "callbacks", "registered here"];
    readonly topics: readonly [1024, "topics", "the server subscribed here"];
    readonly subscriptions: readonly [1024, "topics", "we subscribed"];
    readonly "closing-seconds": readonly [60, "s", "late updates are dropped silently"];
    readonly "closing-topics": readonly [1024, "topics", "the oldest is forgotten above"];
    readonly attributes: readonly [256, "attributes", "of the server"];
    readonly "attributes-bytes": readonly [number, "bytes", "names, values and attachments of these"];
};
/**
 * State → event → next state. The peer's commands have their own names; what we do ourselves ends in
 * `-sent`. A command that is in no row of its state is the peer's fault.
 *
 * @type {Readonly<Record<State, Readonly<Record<string, State>>>>}
 */
export const CLIENT: Readonly<Record<State, Readonly<Record<string, State>>>>;
export type UmqLimits = import("../limits.js").Limits<typeof LIMITS>;
export type State = "start" | "awaiting-welcome" | "open" | "closed";
