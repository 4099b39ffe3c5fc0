/**
 * @template {string} S names of states
 * @template E events
 */
export class TimedMachine<S extends string, E> {
    /**
     * @param {Readonly<Record<S, Readonly<Record<string, S>>>>} table state → event → next state
     * @param {S} state the first one
     * @param {number} now
     */
    constructor(table: Readonly<Record<S, Readonly<Record<string, S>>>>, state: S, now: number);
    _table: Readonly<Record<S, Readonly<Record<string, S>>>>;
    state: S;
    _now: number;
    _deadlines: Deadlines;
    /** What each deadline does, by name. @type {Record<string, (now: number, events: E[]) => void>} */
    _timely: Record<string, (now: number, events: E[]) => void>;
    get open(): boolean;
    get closed(): boolean;
    /** When `advance` is to be called, in seconds; null: never. */
    get deadline(): number | null;
    /** @param {string} event */
    _step(event: string): boolean;
    /**
     * Tell the machine the time before a verb.
     *
     * @param {number} now
     */
    advanceClock(now: number): void;
    /** The peer is not read: what does not come means nothing. */
    paused(): void;
    /** The peer is read again: it has all its time from now on. */
    resumed(): void;
    /**
     * Do what is due.
     *
     * @param {number} now
     * @returns {E[]}
     */
    advance(now: number): E[];
}
import { Deadlines } from "./deadlines.js";
