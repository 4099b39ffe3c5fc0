/** Named points in time, in seconds; a machine says what is due and its caller when. */
export class Deadlines {
  constructor() {
    /** @type {Map<string, number>} */
    this._times = new Map();
  }

  /** The earliest of all, or null. */
  get next() {
    let first = null;
    for (const time of this._times.values()) if (first === null || time < first) first = time;
    return first;
  }

  /**
   * @param {string} name
   * @param {number} time
   */
  set(name, time) {
    this._times.set(name, time);
  }

  /**
   * Set it, unless it is set to an earlier time.
   *
   * @param {string} name
   * @param {number} time
   */
  noLater(name, time) {
    const before = this._times.get(name);
    if (before === undefined || time < before) this._times.set(name, time);
  }

  /** @param {string} name */
  clear(name) {
    this._times.delete(name);
  }

  clearAll() {
    this._times.clear();
  }

  /**
   * Remove and return the names of those that are due, earliest first.
   *
   * @param {number} now
   */
  due(now) {
    const due = [...this._times].filter(([, time]) => time <= now).sort((a, b) => a[1] - b[1]);
    for (const [name] of due) this._times.delete(name);
    return due.map(([name]) => name);
  }
}
