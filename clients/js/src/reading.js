/** Whether a session's socket is read: not while its program is behind. */

/** @typedef {import("./backlog.js").Backlog} Backlog */
/** @typedef {import("./world.js").World} World */

const STALLED_SECONDS = 10; // servers cut off who reads nothing for 30 s

/**
 * Pauses the socket while much waits to be taken. While an answer is awaited it is read further, because
 * what the program waits for may stand behind what it has not taken; and when nothing is taken then
 * for some seconds, it is read up to the bound, which is an error of who is too slow.
 */
export class Reading {
  /**
   * @param {Backlog} backlog
   * @param {import("./link.js").Link<any>} link
   * @param {World} world
   * @param {() => boolean} waiting an answer is awaited
   */
  constructor(backlog, link, world, waiting) {
    this._backlog = backlog;
    this._link = link;
    this._world = world;
    this._waiting = waiting;
    /** Nothing was taken although an answer is awaited. */
    this._stalled = false;
    /** @type {(() => void) | null} */
    this._cancel = null;
    this._begun = false;
    this._over = false;
    backlog.changed = (taken) => {
      if (taken) this._forget();
      this.look();
    };
  }

  /** The session stands. Before that the peer is read in any case. */
  begin() {
    this._begun = true;
    this.look();
  }

  /** Something has changed. */
  look() {
    if (!this._begun || this._over) return;
    const waiting = this._waiting();
    if (!waiting) this._forget();
    if (!this._stalled && this._backlog.much(waiting)) this._pause(waiting);
    else if (this._stalled || (waiting ? !this._backlog.much(waiting) : this._backlog.little)) this._link.resume();
  }

  /** @param {boolean} waiting */
  _pause(waiting) {
    this._link.pause();
    if (!waiting || !this._link.paused) return;
    this._cancel ??= this._world.after(STALLED_SECONDS, () => {
      this._cancel = null;
      this._stalled = true;
      this.look();
    });
  }

  /** The session is over, or reading is not to be paused any more. */
  end() {
    this._over = true;
    this._forget();
    this._link.resume(); // the peer's Close stands behind what was not read
  }

  _forget() {
    this._stalled = false;
    this._cancel?.();
    this._cancel = null;
  }
}
