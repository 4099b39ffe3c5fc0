export type ProtocolFault = import("../errors.js").ProtocolFault;
export type Headers = import("./sending.js").Headers;
export type Received = {
    id: string;
    /**
     * those that the protocol does not reserve
     */
    headers: Headers;
    body: Uint8Array;
    /**
     * it was above `message-bytes` and was cut
     */
    truncated: boolean;
};
export type SabcEvent = {
    type: "granted";
    expires: Date | null;
    headers: Headers;
} | {
    type: "refused";
    code: string | null;
    text: string;
} | ({
    type: "request" | "send-only";
} & Received) | ({
    type: "response";
    waiter: unknown;
} & Received) | {
    type: "failed";
    id: string;
    waiter: unknown;
    code: string | null;
    text: string;
} | {
    type: "expired";
    id: string;
    waiter: unknown;
} | {
    type: "error";
    code: string | null;
    body: Uint8Array;
    headers: Headers;
} | {
    type: "frame-refused";
    code: number;
    text: string;
    id: string | null;
} | {
    type: "frame-discarded";
    id: string | null;
} | {
    type: "abandoned";
    id: string | null;
} | {
    type: "disconnecting";
} | {
    type: "drain-timed-out";
} | {
    type: "fault";
    fault: ProtocolFault;
};
