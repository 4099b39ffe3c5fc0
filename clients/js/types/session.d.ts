/**
 * What those are told who wait for something of a session that has ended.
 *
 * @param {Error} error
 */
export function lostBecause(error: Error): ConnectionClosed | SessionRefused;
/**
 * Call `aborted` when the signal comes before the waiter is settled.
 *
 * @param {Waiter} waiter
 * @param {AbortSignal | undefined} signal
 * @param {() => void} aborted
 */
export function abortable(waiter: Waiter, signal: AbortSignal | undefined, aborted: () => void): void;
/** @typedef {{resolve: (answer: any) => void, reject: (error: unknown) => void}} Waiter */
/**
 * One session on one socket. A subclass has `_on`, what each event does, and `_lost`.
 *
 * @template {import("./link.js").Machine<any>} M
 */
export class LinkedSession<M extends import("./link.js").Machine<any>> {
    /**
     * @param {import("./world.js").Socket} socket an open one
     * @param {M} machine
     * @param {import("./world.js").World} world
     */
    constructor(socket: import("./world.js").Socket, machine: M, world: import("./world.js").World);
    _machine: M;
    _world: import("./world.js").World;
    /** @type {Record<string, (event: any) => void>} */
    _on: Record<string, (event: any) => void>;
    /** Fires when the server has let us in; rejected when it does not. */
    established: Promise<any>;
    _stands: () => void;
    /** Fires with what ended the session. @type {Promise<Error>} */
    ended: Promise<Error>;
    _link: Link<any>;
    /**
     * The session has ended: settle what is pending.
     *
     * @param {Error} _error
     */
    _lost(_error: Error): void;
}
export type Waiter = {
    resolve: (answer: any) => void;
    reject: (error: unknown) => void;
};
import { ConnectionClosed } from "./errors.js";
import { SessionRefused } from "./errors.js";
import { Link } from "./link.js";
