/** Named points in time, in seconds; a machine says what is due and its caller when. */
export class Deadlines {
    /** @type {Map<string, number>} */
    _times: Map<string, number>;
    /** The earliest of all, or null. */
    get next(): number | null;
    /**
     * @param {string} name
     * @param {number} time
     */
    set(name: string, time: number): void;
    /**
     * Set it, unless it is set to an earlier time.
     *
     * @param {string} name
     * @param {number} time
     */
    noLater(name: string, time: number): void;
    /** @param {string} name */
    clear(name: string): void;
    clearAll(): void;
    /**
     * Remove and return the names of those that are due, earliest first.
     *
     * @param {number} now
     */
    due(now: number): string[];
}
