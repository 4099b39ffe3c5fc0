/** @template E */
export class Link<E> {
    /**
     * @param {Socket} socket an open one
     * @param {Machine<E>} machine
     * @param {World} world
     * @param {(event: E) => void} follow is told of each event
     * @param {(error: Error) => void} lost is called once: nothing more comes or goes
     */
    constructor(socket: Socket, machine: Machine<E>, world: World, follow: (event: E) => void, lost: (error: Error) => void);
    _socket: import("./world.js").Socket;
    _machine: Machine<E>;
    _world: import("./world.js").World;
    _follow: (event: E) => void;
    _lost: (error: Error) => void;
    _over: boolean;
    /** The socket is not read, because the program has not taken what arrived. */
    paused: boolean;
    /** @type {Error} */
    _why: Error;
    /** @type {() => void} */
    _cancelTimer: () => void;
    _timerAt: number;
    /** Fires when the socket is closed. @type {Promise<void>} */
    closed: Promise<void>;
    _closed: (value: void | PromiseLike<void>) => void;
    /** Throws LimitExceeded while the peer reads nothing and too much waits for it. */
    checkRoom(): void;
    /** Fires when little waits in the socket, or when it is closed. */
    room(): Promise<void>;
    /** Do not read the socket until `resume`; where a socket cannot do that, nothing happens. */
    pause(): void;
    resume(): void;
    /**
     * What is pending will fail with `why`, whatever ends the connection.
     *
     * @param {Error} why
     */
    because(why: Error): void;
    /** @param {E[]} events */
    _take(events: E[]): void;
    /** Send what the machine has to say, and look when it wants to be called again. */
    settle(): void;
    /** End it now; the socket's closing handshake follows. */
    close(): void;
    _end(): void;
}
export type Socket = import("./world.js").Socket;
export type World = import("./world.js").World;
export type Machine<E> = {
    closed: boolean;
    deadline: number | null;
    receive: (message: any, now: number) => E[];
    advance: (now: number) => E[];
    advanceClock: (now: number) => void;
    /**
     * the peer is not read from now on
     */
    paused: () => void;
    /**
     * it is read again
     */
    resumed: () => void;
    outputs: () => (string | Uint8Array)[];
};
