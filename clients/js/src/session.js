/** What the sessions of both protocols share: a beginning, an end, and requests that are given up. */

import { ConnectionClosed, SessionRefused } from "./errors.js";
import { Link } from "./link.js";

/** @typedef {{resolve: (answer: any) => void, reject: (error: unknown) => void}} Waiter */

/**
 * One session on one socket. A subclass has `_on`, what each event does, and `_lost`.
 *
 * @template {import("./link.js").Machine<any>} M
 */
export class LinkedSession {
  /**
   * @param {import("./world.js").Socket} socket an open one
   * @param {M} machine
   * @param {import("./world.js").World} world
   */
  constructor(socket, machine, world) {
    this._machine = machine;
    this._world = world;
    /** @type {Record<string, (event: any) => unknown>} */
    this._on = {};
    /** @type {(value?: unknown) => void} */
    let stands;
    /** @type {(error: Error) => void} */
    let refused;
    /** Fires when the server has let us in; rejected when it does not. */
    this.established = new Promise((resolve, reject) => {
      stands = resolve;
      refused = reject;
    });
    this.established.catch(() => {});
    this._stands = () => stands();
    /** @type {(error: Error) => void} */
    let ended;
    /** Fires with what ended the session. @type {Promise<Error>} */
    this.ended = new Promise((resolve) => (ended = resolve));
    this._link = new Link(
      socket,
      machine,
      world,
      (event) => this._on[event.type](event),
      (error) => {
        refused(error);
        this._lost(error);
        ended(error);
      },
    );
  }

  /**
   * The session has ended: settle what is pending.
   *
   * @param {Error} _error
   */
  _lost(_error) {}
}

/**
 * What those are told who wait for something of a session that has ended.
 *
 * @param {Error} error
 */
export function lostBecause(error) {
  if (error instanceof ConnectionClosed || error instanceof SessionRefused) return error;
  return new ConnectionClosed(`the session ended: ${error.message}`);
}

/**
 * Call `aborted` when the signal comes before the waiter is settled.
 *
 * @param {Waiter} waiter
 * @param {AbortSignal | undefined} signal
 * @param {() => void} aborted
 */
export function abortable(waiter, signal, aborted) {
  if (!signal) return;
  const { resolve, reject } = waiter;
  const settled = () => signal.removeEventListener("abort", aborted);
  signal.addEventListener("abort", aborted);
  waiter.resolve = (answer) => (settled(), resolve(answer));
  waiter.reject = (error) => (settled(), reject(error));
}
