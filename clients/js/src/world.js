/** What machines and sessions need of their surroundings; tests give others. */

import { ConnectionClosed } from "./errors.js";

/**
 * What a session uses of a WebSocket: browsers, Node and the package `ws` have it.
 *
 * @typedef {object} Socket
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {(data: any) => void} send
 * @property {(code?: number, reason?: string) => void} close
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
 * @property {(url: string, protocol: string, seconds: number) => Promise<Socket>} open an open socket
 */

const TIMER_SECONDS_MAX = 1e6; // a browser's timers count milliseconds in 31 bits

/**
 * @param {SocketClass} [given] the class of WebSockets; else the platform's own, else that of `ws`
 * @returns {World}
 */
export function realWorld(given) {
  return {
    now: () => performance.now() / 1000,
    after(seconds, f) {
      const timer = setTimeout(f, Math.min(seconds, TIMER_SECONDS_MAX) * 1000);
      return () => clearTimeout(timer);
    },
    random: Math.random,
    report: (error) =>
      queueMicrotask(() => {
        throw error;
      }),
    open: async (url, protocol, seconds) =>
      openSocket(new (given ?? (await socketClass()))(url, protocol), url, seconds),
  };
}

/** @returns {Promise<SocketClass>} */
async function socketClass() {
  if (globalThis.WebSocket) return globalThis.WebSocket;
  try {
    const name = "ws"; // not a literal: bundlers for browsers have nothing to look for
    return (await import(/* webpackIgnore: true */ /* @vite-ignore */ name)).WebSocket;
  } catch {
    throw new ConnectionClosed(
      "this Node has no WebSocket of its own: install the package ws (npm install ws), or use Node 22",
    );
  }
}

/**
 * Fires when the socket is open; rejected with ConnectionClosed if it does not open in time.
 *
 * @param {Socket} socket
 * @param {string} url
 * @param {number} seconds
 * @returns {Promise<Socket>}
 */
function openSocket(socket, url, seconds) {
  return new Promise((resolve, reject) => {
    socket.binaryType = "arraybuffer";
    /** @param {string} why */
    const failed = (why) => {
      clearTimeout(timer);
      socket.onopen = socket.onclose = null;
      socket.onerror = () => {};
      reject(new ConnectionClosed(`no connection to ${url}: ${why}`));
    };
    const timer = setTimeout(() => {
      failed(`not in ${seconds} s`);
      socket.close();
    }, seconds * 1000);
    socket.onopen = () => {
      clearTimeout(timer);
      resolve(socket);
    };
    // A browser says nothing of why; ws says it in the event of the error.
    socket.onerror = (event) => failed(event.message || "refused or not to be reached");
    socket.onclose = () => failed("closed");
  });
}
