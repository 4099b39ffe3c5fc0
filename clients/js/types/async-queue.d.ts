/** Values that are pushed here are taken in order, with `for await` or by `next`. */
/** @template T */
export class AsyncQueue<T> {
    /**
     * @param {(value: T, by: 1 | -1) => void} [weigh] is told of each value that begins to wait here
     *   (1), and of each that waits no longer (-1)
     */
    constructor(weigh?: (value: T, by: 1 | -1) => void);
    _weigh: (value: T, by: 1 | -1) => void;
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
    /** The values stay, and weigh nothing from now on. */
    disown(): void;
    /** @returns {Promise<IteratorResult<T, undefined>>} */
    next(): Promise<IteratorResult<T, undefined>>;
}
