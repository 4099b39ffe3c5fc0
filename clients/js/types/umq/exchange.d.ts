/**
 * The bytes to send, and slots for those that come later; `fill` is told of these, and `produce` of
 * those that are not to be made before their turn.
 *
 * @param {readonly Sendable[]} attachments
 * @param {(slot: Slot, bytes: Promise<Uint8Array>) => void} fill
 * @param {(slot: Slot, bytes: () => Promise<Uint8Array>) => void} produce
 * @returns {(Uint8Array | Slot)[]}
 */
export function bodiesOf(attachments: readonly Sendable[], fill: (slot: Slot, bytes: Promise<Uint8Array>) => void, produce: (slot: Slot, bytes: () => Promise<Uint8Array>) => void): (Uint8Array | Slot)[];
/**
 * The payload of a JSON call.
 *
 * @param {string} name
 * @param {readonly unknown[]} args
 */
export function methodCall(name: string, args: readonly unknown[]): string;
/**
 * The value in a JSON answer; throws NotJson.
 *
 * @param {string} payload
 * @returns {any}
 */
export function parseAnswer(payload: string): any;
/**
 * The error that a peer's `E` stands for.
 *
 * @param {string} payload
 */
export function failureOf(payload: string): CallFailed;
/**
 * What the peer is told of an error of ours.
 *
 * @param {unknown} error
 */
export function errorText(error: unknown): string;
/**
 * Mark a method whose first argument is the {@link Request}: it has attachments, or opens topics.
 *
 * @template {(request: Request, ...args: any[]) => any} F
 * @param {F} method
 * @returns {F}
 */
export function withRequest<F extends (request: Request, ...args: any[]) => any>(method: F): F;
/** @typedef {Readonly<Record<string, (...args: any[]) => any>>} Methods */
/**
 * Call the method that a payload names; null if there is none.
 *
 * @param {Methods} methods
 * @param {Request} request
 * @returns {Promise<Reply> | null}
 */
export function answerMethod(methods: Methods, request: Request): Promise<Reply> | null;
/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {Uint8Array | ArrayBuffer | ArrayBufferView | Blob} Bytes */
/**
 * An attachment to send: bytes, a Blob, or a promise for either (it is sent when it is there; if it
 * is rejected, the peer is told that this attachment is lost). A function for one of these is called
 * when all attachments before it have been sent and the peer has read most of them.
 *
 * @typedef {Bytes | Promise<Bytes> | (() => Bytes | Promise<Bytes>)} Sendable
 */
/** A text and its attachments: the answer to a call. */
export class Reply {
    /**
     * @param {string} payload
     * @param {readonly Sendable[]} [attachments]
     */
    constructor(payload: string, attachments?: readonly Sendable[]);
    payload: string;
    attachments: readonly Sendable[];
}
/**
 * An answer that came: each attachment is its bytes, or an AttachmentLost in their place. Those of a
 * call that was `streamed` come through `stream` instead.
 *
 * @typedef {object} Answer
 * @property {string} payload
 * @property {Attachment[]} attachments
 * @property {import("./streams.js").AttachmentStream} [stream]
 */
/**
 * Something new on a topic.
 *
 * @typedef {object} Update
 * @property {string} payload
 * @property {Attachment[]} attachments
 */
/**
 * A call of the peer (`callback` is null) or of a callback.
 *
 * @typedef {object} Request
 * @property {import("./session.js").UmqSession} session
 * @property {string} payload
 * @property {Attachment[]} attachments
 * @property {string | null} callback
 */
/**
 * Answers a call: with text, a Reply, or nothing, now or later. What it throws is told to the peer
 * if it is a Refused or a RemoteError; anything else is "internal error" there.
 *
 * @typedef {(request: Request) => Answered | Promise<Answered>} Answering
 */
/** @typedef {string | Reply | void | null | undefined} Answered */
/**
 * A stock server has no such method, and took the call in: `durable` says that it is on disk.
 */
export class Stored {
    /**
     * What an answer's payload says; null if it is something else.
     *
     * @param {string} payload
     */
    static read(payload: string): Stored | null;
    /** @param {boolean} durable */
    constructor(durable: boolean);
    durable: boolean;
}
export type Methods = Readonly<Record<string, (...args: any[]) => any>>;
export type Attachment = import("./attachments.js").Attachment;
export type Bytes = Uint8Array | ArrayBuffer | ArrayBufferView | Blob;
/**
 * An attachment to send: bytes, a Blob, or a promise for either (it is sent when it is there; if it
 * is rejected, the peer is told that this attachment is lost). A function for one of these is called
 * when all attachments before it have been sent and the peer has read most of them.
 */
export type Sendable = Bytes | Promise<Bytes> | (() => Bytes | Promise<Bytes>);
/**
 * An answer that came: each attachment is its bytes, or an AttachmentLost in their place. Those of a
 * call that was `streamed` come through `stream` instead.
 */
export type Answer = {
    payload: string;
    attachments: Attachment[];
    stream?: import("./streams.js").AttachmentStream | undefined;
};
/**
 * Something new on a topic.
 */
export type Update = {
    payload: string;
    attachments: Attachment[];
};
/**
 * A call of the peer (`callback` is null) or of a callback.
 */
export type Request = {
    session: import("./session.js").UmqSession;
    payload: string;
    attachments: Attachment[];
    callback: string | null;
};
/**
 * Answers a call: with text, a Reply, or nothing, now or later. What it throws is told to the peer
 * if it is a Refused or a RemoteError; anything else is "internal error" there.
 */
export type Answering = (request: Request) => Answered | Promise<Answered>;
export type Answered = string | Reply | void | null | undefined;
import { Slot } from "./attachments.js";
import { CallFailed } from "../errors.js";
