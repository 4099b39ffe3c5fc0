export type Attachment = import("./attachments.js").Attachment;
export type ProtocolFault = import("../errors.js").ProtocolFault;
/**
 * What a machine tells. Messages come when all their attachments are there.
 */
export type UmqEvent = {
    type: "welcome";
    version: number;
    payload: string;
    attachments: Attachment[];
} | {
    type: "call";
    id: string;
    payload: string;
    attachments: Attachment[];
} | {
    type: "callback";
    id: string;
    callback: string;
    payload: string;
    attachments: Attachment[];
} | ResultEvent | {
    type: "attachment";
    result: ResultEvent;
    attachment: Attachment;
} | {
    type: "error";
    waiter: unknown;
    payload: string;
    number: string;
} | {
    type: "expired";
    waiter: unknown;
    number: string;
} | {
    type: "update";
    topic: string;
    payload: string;
    attachments: Attachment[];
} | {
    type: "topic-closed";
    topic: string;
} | {
    type: "unsubscribed";
    topic: string;
} | {
    type: "set";
    name: string;
    value: string;
    attachments: Attachment[];
} | {
    type: "unset";
    name: string;
} | {
    type: "fatal";
    code: number | null;
    text: string;
} | {
    type: "fault";
    fault: ProtocolFault;
};
/**
 * The answer to a call of ours. `coming` counts the attachments that follow, each in an event of its
 * own, because the call is to be streamed (UM-19).
 */
export type ResultEvent = {
    type: "result";
    waiter: unknown;
    payload: string;
    attachments: Attachment[];
    number: string;
    coming?: number;
};
export type Ordered = Extract<UmqEvent, {
    attachments: Attachment[];
}> | Extract<UmqEvent, {
    type: "topic-closed" | "unset";
}>;
