/** What a client says: every verb becomes frames, within the limits of sABC. */

import { ConnectionClosed, LimitExceeded } from "../errors.js";
import { limitsOf } from "../limits.js";
import { TimedMachine } from "../machine.js";
import { Outgoing } from "./outgoing.js";
import { CLIENT, LEAVE_SECONDS, LIMITS } from "./terms.js";
import { ANNOUNCEMENTS, RESERVED, encode, endsEarly, headerLine, textOf, utf8 } from "./wire.js";

/** @typedef {import("./events.js").SabcEvent} SabcEvent */
/** @typedef {import("./terms.js").SabcLimits} SabcLimits */
/** @typedef {import("./terms.js").State} State */
/** @typedef {Readonly<Record<string, string>>} Headers */

const EMPTY = new Uint8Array(0);
const OVERHEAD_LINES = 6; // the lines that our own messages have beside an application's headers
const OVERHEAD_BYTES = 1536;

/**
 * The verbs of a session. What arrives is followed in the subclass.
 *
 * @extends {TimedMachine<State, SabcEvent>}
 */
export class Sending extends TimedMachine {
  /**
   * @param {Partial<SabcLimits>} limits
   * @param {number} now
   */
  constructor(limits, now) {
    super(CLIENT, "idle", now);
    this.limits = limitsOf(LIMITS, limits);
    const blockBytes = this.limits["header-block-bytes"];
    const lines = Math.max(1, Math.floor(blockBytes / 256));
    this.bounds = { lines, lineBytes: Math.floor(blockBytes / 8), blockBytes };
    /** @type {Uint8Array[]} */
    this._out = [];
    this._sessionId = "";
    this._number = 0;
    /** The largest message that the server has said it accepts. @type {number | null} */
    this.peerBytes = null;
    /** @type {Map<string, {waiter: unknown, deadline: number}>} */
    this._pending = new Map();
    /** @type {Map<string, boolean>} The server's requests by id: whether they were cut. */
    this._unanswered = new Map();
    /** Originals of ours whose last part was not sent. */
    this._sending = 0;
  }

  /** Requests of ours without an answer. */
  get outstanding() {
    return this._pending.size;
  }

  /** Return and forget the messages to send: text, or bytes if the body is not UTF-8 (SA-25). */
  outputs() {
    const out = this._out;
    this._out = [];
    return out.map((bytes) => textOf(bytes) ?? bytes);
  }

  /**
   * Ask for a session (SA-07, SA-08); TypeError for what headers cannot carry.
   *
   * @param {string} clientId
   * @param {string | null} [passcode]
   * @param {Headers} [headers]
   */
  connect(clientId, passcode = null, headers = {}) {
    if (!("connect-sent" in CLIENT[this.state])) throw new ConnectionClosed("CONNECT was sent already");
    const own = [headerLine("client-id", clientId)];
    if (passcode !== null) own.push(headerLine("client-passcode", passcode));
    own.push(`message-bytes::${this.limits["message-bytes"]}`);
    const lines = this._lines(headers, (name) => RESERVED.has(name) || ANNOUNCEMENTS.has(name));
    this._step("connect-sent");
    this._out.push(encode(`CONNECT\r\n${own.join("\r\n")}\r\n${lines}`, EMPTY, true));
    this._deadlines.set("connect", this._now + this.limits["connect-seconds"]);
  }

  /**
   * An application's headers as lines; throws for what may not be sent (SA-03).
   *
   * @param {Headers} headers
   * @param {(name: string) => boolean} [reserved]
   */
  _lines(headers, reserved = (name) => RESERVED.has(name)) {
    const lines = Object.entries(headers).map(([name, value]) => {
      const line = headerLine(name, value);
      if (reserved(name)) throw new TypeError(`header ${name} belongs to the protocol`);
      if (utf8(line).length > this.bounds.lineBytes)
        throw new LimitExceeded(`a header is above ${this.bounds.lineBytes} bytes`);
      return `${line}\r\n`;
    });
    if (lines.length > this.bounds.lines - OVERHEAD_LINES)
      throw new LimitExceeded(`${lines.length} headers are too many`);
    const text = lines.join("");
    if (utf8(text).length > Math.max(0, this.bounds.blockBytes - OVERHEAD_BYTES))
      throw new LimitExceeded("the headers are too long");
    return text;
  }

  /**
   * @param {string} lines
   * @param {Uint8Array} body
   * @param {boolean} final
   */
  _sendPart(lines, body, final) {
    const more = final ? "" : "msg-more::yes\r\n";
    const head = `MESSAGE\r\nsession-id::${this._sessionId}\r\n${lines}${more}`;
    this._out.push(encode(head, body, final));
    return /** @type {Uint8Array} */ (this._out.at(-1)).length;
  }

  /**
   * Queue a message in as few frames as `part-bytes` allows (SA-18); TypeError for a body that the
   * framing cannot carry (SA-21). `extra` stands on the first frame alone.
   *
   * @param {string} lines
   * @param {string} extra
   * @param {Uint8Array} body
   */
  _sendMessage(lines, extra, body) {
    if (endsEarly(body)) throw new TypeError("a body cannot hold an end mark, CR LF CR LF NUL (SA-21)");
    if (body.length <= this.limits["part-bytes"]) {
      this._sendPart(lines + extra, body, true);
      return;
    }
    const outgoing = new Outgoing(this, lines, extra, null);
    outgoing.write(body);
    outgoing.finish();
  }

  /** How large a message of ours may be; a server that does not say is assumed to be like us. */
  get sentBytesMax() {
    return this.peerBytes ?? this.limits["message-bytes"];
  }

  /**
   * Throw LimitExceeded for what the peer would cut, and queue nothing: acknowledged means whole.
   *
   * @param {string} lines
   * @param {string} extra
   * @param {Uint8Array} body
   */
  _sendOriginal(lines, extra, body) {
    const before = this._out.length;
    let bytes = body.length;
    if (bytes <= this.sentBytesMax) {
      this._sendMessage(lines, extra, body);
      bytes = this._out.slice(before).reduce((sum, frame) => sum + frame.length, 0);
    }
    if (bytes > this.sentBytesMax) {
      this._out.length = before;
      throw new LimitExceeded(`a message of ${bytes} bytes is above message-bytes=${this.sentBytesMax}`);
    }
  }

  /**
   * @param {boolean} waiting
   * @param {Headers} headers
   */
  _original(waiting, headers) {
    if (!("message-sent" in CLIENT[this.state])) throw new ConnectionClosed("there is no session");
    if (waiting && this._pending.size >= this.limits["outstanding-requests"])
      throw new LimitExceeded(`${this._pending.size} requests are outstanding`);
    const extra = this._lines(headers);
    return { extra, id: String(++this._number) };
  }

  /**
   * Send a message that wants an answer (SA-14 … SA-16); returns its id.
   *
   * @param {Uint8Array} body
   * @param {unknown} waiter comes back with the answer
   * @param {number} deadline when `expired` comes instead
   * @param {Headers} [headers]
   */
  request(body, waiter, deadline, headers = {}) {
    const { extra, id } = this._original(true, headers);
    this._sendOriginal(`msg-id::${id}\r\n`, extra, body);
    this._await(id, waiter, deadline);
    return id;
  }

  /**
   * @param {string} id
   * @param {unknown} waiter
   * @param {number} deadline
   */
  _await(id, waiter, deadline) {
    this._pending.set(id, { waiter, deadline });
    if (deadline < Infinity) this._deadlines.noLater("answer", deadline);
  }

  /**
   * Send a message that wants no answer (SA-17); returns its id.
   *
   * @param {Uint8Array} body
   * @param {Headers} [headers]
   */
  sendOnly(body, headers = {}) {
    const { extra, id } = this._original(false, headers);
    this._sendOriginal(`msg-id::${id}\r\n`, `send-only::yes\r\n${extra}`, body);
    return id;
  }

  /**
   * Begin a request whose body comes in pieces (SA-18).
   *
   * @param {unknown} waiter
   * @param {number} deadline
   * @param {Headers} [headers]
   */
  openRequest(waiter, deadline, headers = {}) {
    const { extra, id } = this._original(true, headers);
    if (this._sending >= this.limits["unfinished-messages"])
      throw new LimitExceeded(`${this._sending} messages are unfinished`);
    this._await(id, waiter, deadline);
    this._sending++;
    return new Outgoing(this, `msg-id::${id}\r\n`, extra, id);
  }

  /**
   * Nobody waits for this answer any more.
   *
   * @param {string} id
   */
  forget(id) {
    return this._pending.delete(id);
  }

  /**
   * Answer the server's request `id` (SA-16), with nothing for an acknowledgement.
   *
   * @param {string} id
   * @param {Uint8Array} [body]
   * @param {Headers} [headers]
   */
  answer(id, body = EMPTY, headers = {}) {
    const truncated = this._unanswered.get(id);
    if (this.closed || truncated === undefined) return;
    let extra = this._lines(headers);
    if (truncated && !("truncated" in headers)) extra += "truncated::yes\r\n";
    this._sendMessage(`ref-msg-id::${id}\r\n`, extra, body);
    this._unanswered.delete(id);
  }

  /**
   * Answer a request with ERROR (SA-16).
   *
   * @param {string} id
   * @param {number | string} code
   * @param {string} text
   */
  refuse(id, code, text) {
    const truncated = this._unanswered.get(id);
    if (this.closed || truncated === undefined) return;
    this._sendError(code, text, id, truncated ? "truncated::yes\r\n" : "");
    this._unanswered.delete(id);
  }

  /**
   * Tell the server that its message `id`, which wants no answer, was not taken (SA-24).
   *
   * @param {string} id
   * @param {number} code
   * @param {string} text
   */
  refuseOriginal(id, code, text) {
    if (!this.closed) this._sendError(code, text, id);
  }

  /**
   * Tell the server of an error that answers nothing (SA-24).
   *
   * @param {number | string} code
   * @param {string} text
   * @param {Headers} [headers]
   */
  sendError(code, text, headers = {}) {
    if (!("message-sent" in CLIENT[this.state])) throw new ConnectionClosed("there is no session");
    this._sendError(code, text, null, this._lines(headers));
  }

  /**
   * @param {number | string} code
   * @param {string} text
   * @param {string | null} ref
   * @param {string} [headers]
   */
  _sendError(code, text, ref, headers = "") {
    const session = this._sessionId ? `session-id::${this._sessionId}\r\n` : "";
    const named = ref === null ? "" : `ref-msg-id::${ref}\r\n`;
    const body = utf8(text);
    const head = `ERROR\r\n${session}${headerLine("error-code", String(code))}\r\n${named}${headers}`;
    this._out.push(encode(head, endsEarly(body) ? EMPTY : body, true));
  }

  /**
   * Ask the server to answer what it has and to close (SA-12), within this time.
   *
   * @param {number} [seconds]
   */
  disconnect(seconds = 30) {
    if (!this._step("disconnect-sent")) throw new ConnectionClosed("there is no session");
    this._deadlines.set("drain", this._now + (this._pending.size ? seconds : Math.min(seconds, LEAVE_SECONDS)));
    this._out.push(encode(`DISCONNECT\r\nsession-id::${this._sessionId}\r\n`, EMPTY, true));
  }

  /** Close at once: DISCONNECTING if there is a session (SA-13). */
  stop() {
    if (this.closed) return;
    if (this._sessionId)
      this._out.push(encode(`DISCONNECTING\r\nsession-id::${this._sessionId}\r\n`, EMPTY, true));
    this._step("stopped");
  }
}
