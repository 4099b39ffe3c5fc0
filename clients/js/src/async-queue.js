/** Values that are pushed here are taken in order, with `for await` or by `next`. */

/** @template T */
export class AsyncQueue {
  /**
   * @param {(value: T, by: 1 | -1) => void} [weigh] is told of each value that begins to wait here
   *   (1), and of each that waits no longer (-1)
   */
  constructor(weigh = () => {}) {
    this._weigh = weigh;
    /** @type {T[]} */
    this._values = [];
    /** @type {{resolve: (result: IteratorResult<T, undefined>) => void, reject: (error: Error) => void}[]} */
    this._waiting = [];
    this._ended = false;
    /** @type {Error | null} */
    this._error = null;
  }

  /** How many values nobody has taken. */
  get length() {
    return this._values.length;
  }

  /** @param {T} value */
  push(value) {
    if (this._ended) return;
    const waiting = this._waiting.shift();
    if (waiting) {
      waiting.resolve({ value, done: false });
    } else {
      this._values.push(value);
      this._weigh(value, 1);
    }
  }

  /**
   * No more values come; with an error, whoever asks for one gets it after those that are here.
   *
   * @param {Error | null} [error]
   */
  end(error = null) {
    if (this._ended) return;
    this._ended = true;
    this._error = error;
    for (const { resolve, reject } of this._waiting.splice(0))
      if (error) reject(error);
      else resolve({ value: undefined, done: true });
  }

  /** Forget the values that nobody has taken. */
  clear() {
    this.disown();
    this._values = [];
  }

  /** The values stay, and weigh nothing from now on. */
  disown() {
    for (const value of this._values) this._weigh(value, -1);
    this._weigh = () => {};
  }

  /** @returns {Promise<IteratorResult<T, undefined>>} */
  next() {
    if (this._values.length) {
      const value = /** @type {T} */ (this._values.shift());
      this._weigh(value, -1);
      return Promise.resolve({ value, done: false });
    }
    if (this._error) return Promise.reject(this._error);
    if (this._ended) return Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => this._waiting.push({ resolve, reject }));
  }
}
