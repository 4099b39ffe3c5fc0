/**
 * @param {SocketClass} [given] the class of WebSockets; else the platform's own, else that of `ws`
 * @returns {World}
 */
export function realWorld(given?: SocketClass): World;
/**
 * What a session uses of a WebSocket: browsers, Node and the package `ws` have it.
 */
export type Socket = {
    binaryType: string;
    bufferedAmount: number;
    send: (data: any) => void;
    close: (code?: number, reason?: string) => void;
    onopen: ((event: any) => void) | null;
    onmessage: ((event: any) => void) | null;
    onclose: ((event: any) => void) | null;
    onerror: ((event: any) => void) | null;
};
export type SocketClass = new (url: string, protocols?: string | string[]) => any;
export type World = {
    /**
     * seconds of a clock that never goes back
     */
    now: () => number;
    /**
     * call `f` later; returns what cancels it
     */
    after: (seconds: number, f: () => void) => () => void;
    /**
     * from 0 to 1
     */
    random: () => number;
    /**
     * an error in a hook, which is its author's to see
     */
    report: (error: unknown) => void;
    /**
     * an open socket
     */
    open: (url: string, protocol: string, seconds: number) => Promise<Socket>;
};
