/** A WebSocket over WebSocketStream, which Chromium has: it can be paused, as a WebSocket cannot. */

/** What a session uses of a WebSocket, see {@link import("./world.js").Socket}. */
export class StreamSocket {
  /**
   * @param {string} url
   * @param {string | string[]} [protocols]
   */
  constructor(url, protocols = []) {
    const { WebSocketStream } = /** @type {any} */ (globalThis);
    this.binaryType = "arraybuffer";
    /** Bytes, and characters of text, that the stream has not accepted. */
    this.bufferedAmount = 0;
    /** @type {((event: any) => void) | null} */
    this.onopen = null;
    /** @type {((event: any) => void) | null} */
    this.onmessage = null;
    /** @type {((event: any) => void) | null} */
    this.onclose = null;
    /** @type {((event: any) => void) | null} */
    this.onerror = null;
    /** @type {Promise<void> | null} While it is paused. */
    this._paused = null;
    this._resume = () => {};
    /** @type {WritableStreamDefaultWriter | null} */
    this._writer = null;
    this._stream = new WebSocketStream(url, { protocols: [protocols].flat() });
    this._stream.closed.catch(() => {}); // it is waited for in _live
    void this._live();
  }

  /** All of its life. Never rejected. */
  async _live() {
    try {
      const { readable, writable } = await this._stream.opened;
      const writer = writable.getWriter();
      writer.closed.catch(() => {});
      this._writer = writer;
      this.onopen?.({});
      await this._read(readable.getReader());
      const { closeCode, reason } = await this._stream.closed;
      this.onclose?.({ code: closeCode, reason, wasClean: true });
    } catch (error) {
      this.onerror?.({ message: "" }); // as little as a WebSocket tells of it
      this.onclose?.({ code: 1006, reason: String(error), wasClean: false });
    }
  }

  /** @param {ReadableStreamDefaultReader<any>} reader */
  async _read(reader) {
    for (;;) {
      while (this._paused) await this._paused;
      const { value, done } = await reader.read();
      if (done) return;
      while (this._paused) await this._paused; // it was read while the stream was being paused
      this.onmessage?.({ data: value });
    }
  }

  /** Read nothing more until `resume`: the peer notices. */
  pause() {
    this._paused ??= new Promise((resolve) => (this._resume = resolve));
  }

  resume() {
    this._paused = null;
    this._resume();
  }

  /** @param {string | Uint8Array} data */
  send(data) {
    const { length } = data;
    this.bufferedAmount += length;
    const sent = () => (this.bufferedAmount -= length);
    // A copy: the program may change its bytes before the stream reads them.
    this._writer?.write(typeof data === "string" ? data : data.slice()).then(sent, sent);
  }

  /**
   * @param {number} [closeCode]
   * @param {string} [reason]
   */
  close(closeCode, reason) {
    this._stream.close(closeCode === undefined ? {} : { closeCode, reason });
  }
}
