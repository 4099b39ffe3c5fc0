/** What the machines of both protocols share: states from a table, time as an argument, deadlines. */

import { Deadlines } from "./deadlines.js";

/**
 * @template {string} S names of states
 * @template E events
 */
export class TimedMachine {
  /**
   * @param {Readonly<Record<S, Readonly<Record<string, S>>>>} table state → event → next state
   * @param {S} state the first one
   * @param {number} now
   */
  constructor(table, state, now) {
    this._table = table;
    this.state = state;
    this._now = now;
    this._deadlines = new Deadlines();
    /** What each deadline does, by name. @type {Record<string, (now: number, events: E[]) => void>} */
    this._timely = {};
  }

  get open() {
    return this.state === "open";
  }

  get closed() {
    return this.state === "closed";
  }

  /** When `advance` is to be called, in seconds; null: never. */
  get deadline() {
    return this._deadlines.next;
  }

  /** @param {string} event */
  _step(event) {
    const next = this._table[this.state][event];
    if (next !== undefined) this.state = next;
    if (this.closed) this._deadlines.clearAll();
    return next !== undefined;
  }

  /**
   * Tell the machine the time before a verb.
   *
   * @param {number} now
   */
  advanceClock(now) {
    this._now = Math.max(now, this._now);
  }

  /** The peer is not read: what does not come means nothing. */
  paused() {}

  /** The peer is read again: it has all its time from now on. */
  resumed() {}

  /**
   * Do what is due.
   *
   * @param {number} now
   * @returns {E[]}
   */
  advance(now) {
    this.advanceClock(now);
    /** @type {E[]} */
    const events = [];
    for (const name of this._deadlines.due(now)) if (!this.closed) this._timely[name](now, events);
    return events;
  }
}
