/** A message that is sent in parts. */

import { LimitExceeded } from "../errors.js";
import { endsEarly, partStart, utf8 } from "./wire.js";

/** @typedef {import("./sending.js").Sending} Sending */

const HEAD_BYTES = "msg-more::yes\r\ncontent-length::1234567890\r\n\r\n".length;
const END_BYTES = 5;
const REACH = 4; // bytes before a piece that may be the beginning of an end mark

/**
 * The last part is kept back until the next one comes: only the last frame of a message carries the
 * end mark, and no part may begin with NUL (SA-18, SA-21).
 */
export class Outgoing {
  /**
   * @param {Sending} machine
   * @param {string} lines stand on every frame
   * @param {string} extra stands on the first one
   * @param {string | null} id of a request that was opened; null for a body that is all here
   */
  constructor(machine, lines, extra, id) {
    this._machine = machine;
    this._lines = lines;
    this._extra = extra;
    this.id = id;
    this._kept = new Uint8Array(0);
    this._before = new Uint8Array(0);
    this._sent = 0;
    this._begun = false;
    this.finished = false;
  }

  /**
   * Throw TypeError if these bytes cannot be sent next, LimitExceeded if the message would be
   * larger with them than the peer accepts; nothing is sent then.
   *
   * @param {Uint8Array} bytes
   */
  _check(bytes) {
    const machine = this._machine;
    if (this.id !== null) {
      const left = this._kept.length + bytes.length;
      const frames = 1 + Math.floor(left / machine.limits["part-bytes"]);
      const prefix = utf8(`MESSAGE\r\nsession-id::${machine._sessionId}\r\n`).length;
      const heads = frames * (prefix + utf8(this._lines).length + HEAD_BYTES);
      const total = this._sent + left + heads + utf8(this._extra).length + END_BYTES;
      if (total > machine.sentBytesMax)
        throw new LimitExceeded(`a message of ${total} bytes is above message-bytes=${machine.sentBytesMax}`);
    }
    const whole = concatenated(this._before, bytes);
    const begins = this._before.length < REACH; // these are all there is: it may still begin badly
    const ends = begins ? endsEarly(whole) : endsEarly(concatenated(Uint8Array.of(1), whole));
    if (ends) throw new TypeError("a body cannot hold an end mark, CR LF CR LF NUL (SA-21)");
  }

  /**
   * Send more of the body.
   *
   * @param {Uint8Array} bytes
   */
  write(bytes) {
    if (this.finished) throw new TypeError("the message is finished");
    this._check(bytes);
    if (this._machine.closed) return;
    this._before = concatenated(this._before, bytes).slice(-REACH);
    const kept = concatenated(this._kept, bytes);
    const size = this._machine.limits["part-bytes"];
    let start = 0;
    // Three bytes ahead: then it is known whether the next part begins with CRLF NUL.
    while (kept.length - start > size + 3) {
      const end = partStart(kept, start + size);
      if (end + 3 > kept.length) break;
      this._part(kept.subarray(start, end), false);
      start = end;
    }
    this._kept = kept.slice(start);
  }

  /**
   * @param {Uint8Array} body
   * @param {boolean} final
   */
  _part(body, final) {
    this._sent += this._machine._sendPart(this._lines + this._extra, body, final);
    this._extra = "";
    this._begun = true;
  }

  /** Send the last part. */
  finish() {
    if (!this._release()) return;
    if (!this._machine.closed) this._part(this._kept, true);
  }

  /** Never finish it: an error frame has the peer drop it (SA-20). */
  abort() {
    if (!this._release()) return;
    const machine = this._machine;
    if (this.id !== null) machine.forget(this.id);
    if (this._begun && !machine.closed) machine._out.push(utf8(`MESSAGE\r\nsession-id::${machine._sessionId}\r\n${this._lines}\r\n`));
  }

  _release() {
    if (this.finished) return false;
    this.finished = true;
    if (this.id !== null) this._machine._sending--;
    return true;
  }
}

/**
 * @param {Uint8Array} first
 * @param {Uint8Array} second
 */
function concatenated(first, second) {
  const whole = new Uint8Array(first.length + second.length);
  whole.set(first);
  whole.set(second, first.length);
  return whole;
}
