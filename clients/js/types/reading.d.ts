/**
 * Pauses the socket while much is unread. While an answer is awaited it is read further, because
 * what the program waits for may stand behind what it has not taken; and when nothing is taken then
 * for some seconds, it is read up to the bound, which is an error of who is too slow.
 */
export class Reading {
    /**
     * @param {Unread} unread
     * @param {import("./link.js").Link<any>} link
     * @param {World} world
     * @param {() => boolean} waiting an answer is awaited
     */
    constructor(unread: Unread, link: import("./link.js").Link<any>, world: World, waiting: () => boolean);
    _unread: import("./unread.js").Unread;
    _link: import("./link.js").Link<any>;
    _world: import("./world.js").World;
    _waiting: () => boolean;
    /** Nothing was taken although an answer is awaited. */
    _stalled: boolean;
    /** @type {(() => void) | null} */
    _cancel: (() => void) | null;
    _begun: boolean;
    _over: boolean;
    /** The session stands. Before that the peer is read in any case. */
    begin(): void;
    /** Something has changed. */
    look(): void;
    /** @param {boolean} waiting */
    _pause(waiting: boolean): void;
    /** The session is over, or reading is not to be paused any more. */
    end(): void;
    _forget(): void;
}
export type Unread = import("./unread.js").Unread;
export type World = import("./world.js").World;
