/** One socket and one machine: what arrives goes in, what the machine says goes out. */

import { ConnectionClosed, LimitExceeded } from "./errors.js";
import { guarded } from "./world.js";

/** @typedef {import("./world.js").Socket} Socket */
/** @typedef {import("./world.js").World} World */

/**
 * @template E
 * @typedef {object} Machine
 * @property {boolean} closed
 * @property {number | null} deadline
 * @property {(message: any, now: number) => E[]} receive
 * @property {(now: number) => E[]} advance
 * @property {(now: number) => void} advanceClock
 * @property {() => void} paused the peer is not read from now on
 * @property {() => void} resumed it is read again
 * @property {() => (string | Uint8Array)[]} outputs
 */

const CLOSE_SECONDS = 4; // the peer's part of the closing handshake; then the socket is left alone
const AHEAD_BYTES = 1 << 20; // what is read of a stream before the peer takes it
const LOOK_SECONDS = 0.02; // a socket does not say when it has room again
const UNSENT_BYTES_MAX = 64 << 20; // what waits in the socket because the peer does not read

/** @template E */
export class Link {
  /**
   * @param {Socket} socket an open one
   * @param {Machine<E>} machine
   * @param {World} world
   * @param {(event: E) => unknown} follow is told of each event
   * @param {(error: Error) => void} lost is called once: nothing more comes or goes
   */
  constructor(socket, machine, world, follow, lost) {
    this._socket = socket;
    this._machine = machine;
    this._world = world;
    this._follow = follow;
    this._lost = lost;
    this._over = false;
    /** The socket is not read, because the program has not taken what arrived. */
    this.paused = false;
    /** @type {Error} */
    this._why = new ConnectionClosed("the connection was closed");
    /** @type {() => void} */
    this._cancelTimer = () => {};
    this._timerAt = Infinity;
    /** Fires when the socket is closed. @type {Promise<void>} */
    this.closed = new Promise((resolve) => (this._closed = resolve));
    socket.onmessage = ({ data }) => {
      if (this._over) return;
      const message = typeof data === "string" || data instanceof Uint8Array ? data : new Uint8Array(data);
      this._take(machine.receive(message, world.now()));
    };
    socket.onerror = () => {};
    socket.onclose = () => {
      this._end();
      this._closed?.();
    };
  }

  /** Throws LimitExceeded while the peer reads nothing and too much waits for it. */
  checkRoom() {
    if (this._socket.bufferedAmount > UNSENT_BYTES_MAX)
      throw new LimitExceeded("too much waits to be sent: the peer does not read");
  }

  /** Fires when little waits in the socket, or when it is closed. */
  async room() {
    while (!this._over && this._socket.bufferedAmount > AHEAD_BYTES)
      await new Promise((resolve) => this._world.after(LOOK_SECONDS, () => resolve(null)));
  }

  /** Do not read the socket until `resume`; where a socket cannot do that, nothing happens. */
  pause() {
    if (this._over || this.paused || !this._socket.pause) return;
    this.paused = true;
    this._machine.paused();
    this._socket.pause();
  }

  resume() {
    if (!this.paused) return;
    this.paused = false;
    this._socket.resume?.();
    if (this._over) return;
    this._machine.advanceClock(this._world.now());
    this._machine.resumed();
    this.settle();
  }

  /**
   * What is pending will fail with `why`, whatever ends the connection.
   *
   * @param {Error} why
   */
  setCloseReason(why) {
    this._why = why;
  }

  /** @param {E[]} events */
  _take(events) {
    for (const event of events) {
      if (this._over) return;
      guarded(this._world, () => this._follow(event));
    }
    this.settle();
  }

  /** Send what the machine has to say, and look when it wants to be called again. */
  settle() {
    if (this._over) return;
    for (const message of this._machine.outputs()) this._socket.send(message);
    if (this._machine.closed) {
      this.close();
      return;
    }
    const { deadline } = this._machine;
    if (deadline === null || deadline >= this._timerAt) return; // a timer too early looks again
    const { now, after } = this._world;
    this._cancelTimer();
    this._timerAt = deadline;
    this._cancelTimer = after(Math.max(0, deadline - now()), () => {
      this._timerAt = Infinity;
      this._take(this._machine.advance(now()));
    });
  }

  /** End it now; the socket's closing handshake follows. */
  close() {
    if (this._over) return;
    this._end();
    this._socket.close(1000);
    const cancel = this._world.after(CLOSE_SECONDS, () => {
      this._socket.terminate?.();
      this._closed?.();
    });
    this.closed.then(cancel);
  }

  _end() {
    if (this._over) return;
    this._over = true;
    this._cancelTimer();
    this._lost(this._why);
  }
}
