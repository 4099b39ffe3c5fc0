/** Values that are pushed here are taken in order, with `for await` or by `next`. */
/** @template T */
export class AsyncQueue<T> {
    /** @type {T[]} */
    _values: T[];
    /** @type {{resolve: (result: IteratorResult<T, undefined>) => void, reject: (error: Error) => void}[]} */
    _waiting: {
        resolve: (result: IteratorResult<T, undefined>) => void;
        reject: (error: Error) => void;
    }[];
    _ended: boolean;
    /** @type {Error | null} */
    _error: Error | null;
    /** How many values nobody has taken. */
    get length(): number;
    /** @param {T} value */
    push(value: T): void;
    /**
     * No more values come; with an error, whoever asks for one gets it after those that are here.
     *
     * @param {Error | null} [error]
     */
    end(error?: Error | null): void;
    /** Forget the values that nobody has taken. */
    clear(): void;
    /** @returns {Promise<IteratorResult<T, undefined>>} */
    next(): Promise<IteratorResult<T, undefined>>;
}
