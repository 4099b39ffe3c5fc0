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
export function limitsOf<T extends LimitTable>(table: T, changes?: Partial<Limits<T>>): Limits<T>;
/**
 * Part `changes` into those of `table` and all others.
 *
 * @param {Record<string, number | undefined>} changes
 * @param {LimitTable} table
 * @returns {{own: any, shared: any}}
 */
export function splitLimits(changes: Record<string, number | undefined>, table: LimitTable): {
    own: any;
    shared: any;
};
export type LimitTable = Readonly<Record<string, readonly [value: number, unit: string, purpose: string]>>;
export type Limits<T extends LimitTable> = { [name in keyof T]: number; };
