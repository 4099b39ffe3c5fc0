/** What machines and sessions need of their surroundings; tests give others. */

import { isPromise } from "./backlog.js";
import { ConnectionClosed } from "./errors.js";
import { StreamSocket } from "./stream-socket.js";

/**
 * What a session uses of a WebSocket: browsers, Node and the package `ws` have it.
 *
 * @typedef {object} Socket
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {(data: any) => void} send
 * @property {(code?: number, reason?: string) => void} close
 * @property {() => void} [pause] not all have it: read nothing until `resume`
 * @property {() => void} [resume]
 * @property {() => void} [terminate] not all have it: close without a handshake
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onclose
 * @property {((event: any) => void) | null} onerror
 */

/** @typedef {new (url: string, protocols?: string | string[]) => any} SocketClass */

/**
 * @typedef {object} World
 * @property {() => number} now seconds of a clock that never goes back
 * @property {(seconds: number, f: () => void) => () => void} after call `f` later; returns what cancels it
 * @property {() => number} random from 0 to 1
 * @property {(error: unknown) => void} report an error in a hook, which is its author's to see
 * @property {(url: string, protocol: string, seconds: number, signal: AbortSignal) => Promise<Socket>} open
 *   an open socket; the signal ends the attempt; rejected with Hopeless for what no attempt can reach
 */

/** No later attempt can succeed, because of what the program has asked for: `cause` says what that is. */
export class Hopeless extends Error {
  /** @param {unknown} cause */
  constructor(cause) {
    super("hopeless");
    this.cause = cause instanceof Error ? cause : new TypeError(String(cause));
  }
}

const TIMER_SECONDS_MAX = 1e6; // a browser's timers count milliseconds in 31 bits

/**
 * @param {SocketClass} [given] the class of sockets; else the best that the platform has
 * @param {(error: unknown) => void} [report] by default `reportError` in pages, `console.error` elsewhere
 * @returns {World}
 */
export function realWorld(given, report = reported) {
  return {
    now: () => performance.now() / 1000,
    after(seconds, f) {
      const timer = setTimeout(f, Math.min(seconds, TIMER_SECONDS_MAX) * 1000);
      return () => clearTimeout(timer);
    },
    random: Math.random,
    report(error) {
      try {
        report(error);
      } catch (another) {
        reported(another);
      }
    },
    async open(url, protocol, seconds, signal) {
      const Class = given ?? (await socketClass());
      let socket;
      try {
        socket = new Class(url, protocol);
      } catch (error) {
        throw new Hopeless(error); // it is no URL of a WebSocket, or the page's policy forbids it
      }
      return await openSocket(socket, url, seconds, signal);
    },
  };
}

/**
 * Call a hook. What it throws is reported, also if it is async, and changes nothing here.
 *
 * @param {World} world
 * @param {() => unknown} hook
 */
export function guarded(world, hook) {
  try {
    const done = hook();
    if (isPromise(done)) done.then(undefined, (error) => world.report(error));
  } catch (error) {
    world.report(error);
  }
}

/**
 * An error in a hook is its author's to see, and ends neither a session nor the process.
 *
 * @param {unknown} error
 */
function reported(error) {
  if (typeof globalThis.reportError === "function") globalThis.reportError(error);
  else console.error(error);
}

/**
 * The class of sockets that can be paused, if there is one here: `ws` in Node, `WebSocketStream` in
 * Chromium. Otherwise the platform's WebSocket.
 *
 * @returns {Promise<SocketClass>}
 */
async function socketClass() {
  const { process, WebSocket, WebSocketStream } = /** @type {any} */ (globalThis);
  if (WebSocketStream) return StreamSocket;
  const { node, bun, deno } = process?.versions ?? {};
  if (WebSocket && (!node || bun || deno)) return WebSocket;
  try {
    const name = "ws"; // not a literal: bundlers for browsers have nothing to look for
    return (await import(/* webpackIgnore: true */ /* @vite-ignore */ name)).WebSocket;
  } catch {
    if (WebSocket) return WebSocket;
    throw new ConnectionClosed(
      "this Node has no WebSocket of its own: install the package ws beside this one " +
        "(npm install --install-links FOLDER ws, if you have it as a folder), or use Node 22",
    );
  }
}

/**
 * Fires when the socket is open; rejected with ConnectionClosed if it does not open in time.
 *
 * @param {Socket} socket
 * @param {string} url
 * @param {number} seconds
 * @param {AbortSignal} signal
 * @returns {Promise<Socket>}
 */
function openSocket(socket, url, seconds, signal) {
  return new Promise((resolve, reject) => {
    socket.binaryType = "arraybuffer";
    /** @param {string} why */
    const failed = (why) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", aborted);
      socket.onopen = socket.onclose = null;
      socket.onerror = () => {};
      reject(new ConnectionClosed(`no connection to ${url}: ${why}`));
    };
    /** @param {string} why */
    const giveUp = (why) => {
      failed(why);
      if (socket.terminate) socket.terminate();
      else socket.close();
    };
    const aborted = () => giveUp("the client was closed");
    const timer = setTimeout(() => giveUp(`not in ${seconds} s`), seconds * 1000);
    signal.addEventListener("abort", aborted);
    if (signal.aborted) aborted();
    socket.onopen = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", aborted);
      resolve(socket);
    };
    // A browser says nothing of why; ws says it in the event of the error.
    socket.onerror = (event) => failed(event.message || "refused or not to be reached");
    socket.onclose = () => failed("closed");
  });
}
