/** Every limit has a name, a default and a unit; an option `limits` changes them by name. */

/**
 * @typedef {Readonly<Record<string, readonly [value: number, unit: string, purpose: string]>>} LimitTable
 */

/**
 * @template {LimitTable} T
 * @typedef {{[name in keyof T]: number}} Limits
 */

/**
 * The values of `table`, with `changes`. Throws RangeError for an unknown name and for what is no
 * number ≥ 0.
 *
 * @template {LimitTable} T
 * @param {T} table
 * @param {Partial<Limits<T>>} [changes]
 * @returns {Limits<T>}
 */
export function limitsOf(table, changes = {}) {
  /** @type {Record<string, number>} */
  const limits = {};
  for (const [name, [value]] of Object.entries(table)) limits[name] = value;
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined) continue;
    if (!(name in limits)) throw new RangeError(`there is no limit ${name}`);
    if (typeof value !== "number" || !(value >= 0))
      throw new RangeError(`the limit ${name} is a number that is not negative`);
    limits[name] = value;
  }
  return /** @type {Limits<T>} */ (limits);
}

/**
 * Part `changes` into those of `table` and all others.
 *
 * @param {Record<string, number | undefined>} changes
 * @param {LimitTable} table
 * @returns {{own: any, shared: any}}
 */
export function splitLimits(changes, table) {
  /** @type {Record<string, number | undefined>} */
  const own = {};
  /** @type {Record<string, number | undefined>} */
  const shared = {};
  for (const [name, value] of Object.entries(changes)) (name in table ? own : shared)[name] = value;
  return { own, shared };
}
