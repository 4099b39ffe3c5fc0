/**
 * The client's side of sABC on WebSocket without I/O: messages in, events and messages out.
 *
 * Its caller gives it what arrives (`receive`), sends what `outputs` returns after each call, and
 * calls `advance` at the time that `deadline` names; it answers each request with `answer` or
 * `refuse`. `now` is in seconds of any clock that never goes back.
 */

import { ProtocolFault } from "../errors.js";
import { joined, mute, newIncoming, wholeCharacters } from "./incoming.js";
import { Sending } from "./sending.js";
import { CLIENT, MISPLACED, UNFINISHED_SECONDS } from "./terms.js";
import { ANNOUNCEMENTS, COMMANDS, RESERVED, readFrame, utf8 } from "./wire.js";

/** @typedef {import("./events.js").SabcEvent} SabcEvent */
/** @typedef {import("./incoming.js").Incoming} Incoming */
/** @typedef {import("./terms.js").SabcLimits} SabcLimits */
/** @typedef {import("./wire.js").Frame} Frame */

/** One session of a client. */
export class Machine extends Sending {
  /** @param {{limits?: Partial<SabcLimits>, now?: number}} [options] */
  constructor({ limits = {}, now = 0 } = {}) {
    super(limits, now);
    this._deadlines.set("connect", now + this.limits["connect-seconds"]);
    /** @type {Map<string, Incoming>} */
    this._unfinished = new Map();
    this._paused = false;
  }

  // ── messages in ──────────────────────────────────────────────────────────────────────────────

  /**
   * Follow one WebSocket message.
   *
   * @param {string | Uint8Array} message
   * @param {number} now
   * @returns {SabcEvent[]}
   */
  receive(message, now) {
    this._now = Math.max(now, this._now);
    /** @type {SabcEvent[]} */
    const events = [];
    if (this.closed) return events;
    const frame = readFrame(typeof message === "string" ? utf8(message) : message, this.bounds);
    if (frame instanceof ProtocolFault) this._fail(frame, events);
    else if (!COMMANDS[frame.command]) this._command(frame, events);
    else this._bodied(frame, events);
    if (this._unfinished.size && !this.closed)
      this._deadlines.noLater("unfinished", this._now + UNFINISHED_SECONDS);
    return events;
  }

  /**
   * The server broke the protocol: ERROR with a code, and no more (SA-06).
   *
   * @param {ProtocolFault} fault
   * @param {SabcEvent[]} events
   * @param {string | null} [ref]
   */
  _fail(fault, events, ref = null) {
    this._sendError(fault.code, fault.message, ref);
    this._step("fault");
    events.push({ type: "fault", fault });
  }

  /**
   * A frame's meaning is wrong: ERROR with a code, the connection stays (SA-06).
   *
   * @param {number} code
   * @param {string} text
   * @param {SabcEvent[]} events
   * @param {string | null} ref
   * @param {string | null} id
   */
  _refuse(code, text, events, ref, id) {
    this._sendError(code, text, ref);
    events.push({ type: "frame-refused", code, text, id });
  }

  /**
   * Whether the table allows `frame` here, and whether it belongs to this session.
   *
   * @param {Frame} frame
   * @param {SabcEvent[]} events
   */
  _admit({ command, headers }, events) {
    if (!(command in CLIENT[this.state])) {
      const text = `${command} cannot be here (${this.state})`;
      this._fail(new ProtocolFault("wrong-command", text, 400), events);
      return false;
    }
    if (command === "CONNECTED") return true;
    const claimed = headers.get("session-id");
    if (claimed === undefined && command === "ERROR") return true;
    if (claimed === this._sessionId) return true;
    this._fail(new ProtocolFault("session-id", "not this session", 401), events);
    return false;
  }

  /** @param {Frame} frame */
  _misplaced({ command, headers }) {
    const wrong = [...MISPLACED[command]].filter((name) => headers.has(name)).sort()[0];
    return wrong === undefined ? null : `${wrong} does not belong on ${command}`;
  }

  /**
   * @param {Frame} frame
   * @param {SabcEvent[]} events
   */
  _command(frame, events) {
    if (!this._admit(frame, events)) return;
    const problem = this._misplaced(frame);
    if (problem !== null) {
      this._refuse(400, problem, events, null, null);
      return;
    }
    this._step(frame.command);
    if (frame.command === "DISCONNECTING") events.push({ type: "disconnecting" });
    else this._granted(frame.headers, events);
  }

  /**
   * @param {Map<string, string>} headers of CONNECTED
   * @param {SabcEvent[]} events
   */
  _granted(headers, events) {
    const id = headers.get("session-id");
    if (!id) {
      this._fail(new ProtocolFault("session-id", "CONNECTED names no session", 400), events);
      return;
    }
    this._deadlines.clear("connect");
    this._sessionId = id;
    const bytes = headers.get("message-bytes") ?? "";
    if (/^[0-9]{1,18}$/.test(bytes)) this.peerBytes = Number(bytes);
    const free = [...headers].filter(([name]) => !RESERVED.has(name) && !ANNOUNCEMENTS.has(name));
    const expires = readDate(headers.get("session-expiry") ?? "");
    events.push({ type: "granted", expires, headers: Object.fromEntries(free) });
  }

  /**
   * A MESSAGE or ERROR.
   *
   * @param {Frame} frame
   * @param {SabcEvent[]} events
   */
  _bodied(frame, events) {
    if (!this._admit(frame, events)) return;
    const incoming = frame.command === "ERROR" ? this._openError(frame) : this._openMessage(frame, events);
    const more = frame.command === "MESSAGE" && frame.headers.get("msg-more") === "yes";
    this._grow(incoming, frame.headBytes, events);
    if (this.closed) return;
    if (!incoming.muted && !incoming.cut) {
      const room = Math.max(0, this.limits["message-bytes"] - incoming.size);
      incoming.parts.push(frame.body.length <= room ? frame.body : frame.body.subarray(0, room));
    }
    this._grow(incoming, frame.body.length, events);
    if (!this.closed) this._closeFrame(incoming, frame, more, events);
  }

  /** @param {Frame} frame */
  _openError({ headers }) {
    const incoming = newIncoming(null, null, false, this._now);
    headers.delete("session-id"); // a secret, and no news to the application
    incoming.headers = Object.fromEntries(headers);
    return incoming;
  }

  /**
   * @param {Frame} frame
   * @param {SabcEvent[]} events
   */
  _openMessage(frame, events) {
    const { headers } = frame;
    this._step("MESSAGE");
    const id = headers.get("msg-id");
    const named = id ?? headers.get("ref-msg-id");
    const key = named === undefined ? null : `${id === undefined ? "response" : "original"} ${named}`;
    const found = key === null ? undefined : this._unfinished.get(key);
    const incoming = found ?? newIncoming(key, named ?? null, id === undefined, this._now);
    incoming.heard = this._now;
    if (!incoming.muted) this._examine(frame, incoming, !found, events);
    return incoming;
  }

  /**
   * Refuse a MESSAGE whose headers make no sense (SA-06, SA-14 … SA-17).
   *
   * @param {Frame} frame
   * @param {Incoming} incoming
   * @param {boolean} first
   * @param {SabcEvent[]} events
   */
  _examine(frame, incoming, first, events) {
    const { headers } = frame;
    const id = headers.get("msg-id");
    const ref = headers.get("ref-msg-id");
    const sendOnly = headers.get("send-only") === "yes";
    let problem = this._misplaced(frame);
    if (problem !== null) {
      // that is what is wrong with it
    } else if (id === undefined && ref === undefined) {
      problem = "neither msg-id nor ref-msg-id";
    } else if (id !== undefined && ref !== undefined) {
      problem = "msg-id and ref-msg-id";
    } else if (ref !== undefined && sendOnly) {
      problem = "ref-msg-id and send-only";
    } else if (first && id !== undefined && this._unanswered.has(id)) {
      problem = "this msg-id waits for its answer";
    }
    if (problem !== null) {
      // Only an original may be named: the ids of its answers are our own ids.
      this._refuse(400, problem, events, id ?? null, incoming.id);
      mute(incoming);
      return;
    }
    if (first) {
      incoming.sendOnly = sendOnly;
      if (ref !== undefined && !this._pending.has(ref)) {
        mute(incoming);
        return;
      }
    }
    for (const [name, value] of headers) if (!RESERVED.has(name)) incoming.headers[name] = value;
  }

  /**
   * So many bytes more of a message came (SA-22).
   *
   * @param {Incoming} incoming
   * @param {number} bytes
   * @param {SabcEvent[]} events
   * @param {boolean} [trim] the body may end within a character
   */
  _grow(incoming, bytes, events, trim = true) {
    const most = this.limits["message-bytes"];
    incoming.size += bytes;
    if (incoming.size <= most) return;
    if (!incoming.muted && !incoming.cut) {
      const body = joined(incoming.parts);
      incoming.parts = [trim ? wholeCharacters(body) : body];
      incoming.cut = true;
    }
    if (incoming.size > 2 * most) {
      const ref = incoming.response ? null : incoming.id;
      mute(incoming);
      this._fail(new ProtocolFault("message-bytes", "the message is more than twice too large", 413), events, ref);
    }
  }

  /**
   * @param {Incoming} incoming
   * @param {Frame} frame
   * @param {boolean} more
   * @param {SabcEvent[]} events
   */
  _closeFrame(incoming, frame, more, events) {
    const { key } = incoming;
    if (frame.final) {
      this._grow(incoming, frame.endBytes, events, false);
      if (this.closed) return;
      if (!incoming.muted) {
        this._deliver(incoming, joined(incoming.parts), events);
      } else if (incoming.givenUp && !incoming.response) {
        // Its late end, or a new message under its id, which would wait for an answer.
        const text = "a message with this msg-id was given up; send it anew";
        this._refuse(408, text, events, incoming.id, incoming.id);
      }
      if (key !== null) this._unfinished.delete(key);
    } else if (more) {
      this._suspend(incoming, events);
    } else {
      events.push({ type: "frame-discarded", id: incoming.id });
      if (key !== null) this._unfinished.delete(key);
    }
  }

  /**
   * A part is complete; keep its message until the next, unless too many wait already (SA-27).
   *
   * @param {Incoming} incoming
   * @param {SabcEvent[]} events
   */
  _suspend(incoming, events) {
    const { key } = incoming;
    if (key === null || this._unfinished.has(key)) return;
    const most = this.limits["unfinished-messages"];
    let muted = 0;
    for (const other of this._unfinished.values()) if (other.muted) muted++;
    if (!incoming.muted && this._unfinished.size - muted >= most) {
      const ref = incoming.response ? null : incoming.id;
      this._refuse(429, `more than ${most} unfinished messages`, events, ref, incoming.id);
      mute(incoming);
    }
    if (!(incoming.muted && this._full(incoming.heard, events))) this._unfinished.set(key, incoming);
  }

  /**
   * End the session if too many messages that are skipped may still go on. One of which nothing
   * has come for a while makes room, when another needs its place.
   *
   * @param {number} now
   * @param {SabcEvent[]} events
   */
  _full(now, events) {
    const muted = [...this._unfinished.values()].filter((incoming) => incoming.muted);
    if (muted.length < this.limits["unfinished-messages"]) return false;
    const eldest = muted.reduce((one, other) => (other.heard < one.heard ? other : one));
    if (now >= eldest.heard + UNFINISHED_SECONDS) {
      this._unfinished.delete(/** @type {string} */ (eldest.key));
      return false;
    }
    this._fail(new ProtocolFault("unfinished-messages", "too many refused messages go on", 429), events);
    return true;
  }

  /**
   * @param {Incoming} incoming
   * @param {Uint8Array} body
   * @param {SabcEvent[]} events
   */
  _deliver({ key, id, response, headers, sendOnly, cut: truncated }, body, events) {
    if (key === null || id === null) {
      this._errorReceived(headers, body, events);
      return;
    }
    if (response) {
      const pending = this._pending.get(id);
      if (!pending) return;
      this._pending.delete(id);
      const { waiter } = pending;
      // The peer has only the beginning of our message: it has not taken it.
      const text = "the peer has cut the message to what it takes";
      if (headers.truncated === "yes") events.push({ type: "failed", id, waiter, code: "truncated", text });
      else events.push({ type: "response", id, waiter, headers, body, truncated });
    } else if (sendOnly) {
      events.push({ type: "send-only", id, headers, body, truncated });
    } else if (this._unanswered.size >= this.limits["outstanding-requests"]) {
      const text = `more than ${this.limits["outstanding-requests"]} unanswered requests`;
      this._refuse(429, text, events, id, id);
    } else {
      this._unanswered.set(id, truncated);
      events.push({ type: "request", id, headers, body, truncated });
    }
  }

  /**
   * An ERROR refuses the session, fails the request it names, or goes to the application (SA-16).
   *
   * @param {Record<string, string>} headers
   * @param {Uint8Array} body
   * @param {SabcEvent[]} events
   */
  _errorReceived(headers, body, events) {
    const code = headers["error-code"] ?? null;
    if (this.state === "waiting") {
      this._step("ERROR");
      this._deadlines.clear("connect");
      events.push({ type: "refused", code, text: lenient.decode(body) });
      return;
    }
    for (const name of ["ref-msg-id", "message-id", "msg-id"]) {
      const id = headers[name];
      const pending = id === undefined ? undefined : this._pending.get(id);
      if (!pending) continue;
      this._pending.delete(id);
      events.push({ type: "failed", id, waiter: pending.waiter, code, text: lenient.decode(body) });
      return;
    }
    events.push({ type: "error", code, body, headers });
  }

  /** @override */
  paused() {
    this._paused = true;
  }

  /** @override */
  resumed() {
    this._paused = false;
    for (const incoming of this._unfinished.values()) incoming.heard = this._now;
    if (this._unfinished.size && !this.closed)
      this._deadlines.noLater("unfinished", this._now + UNFINISHED_SECONDS);
  }

  // ── time ─────────────────────────────────────────────────────────────────────────────────────

  /** @type {Record<string, (now: number, events: SabcEvent[]) => void>} */
  _timely = {
    connect: (_, events) => this._fail(new ProtocolFault("connect-seconds", "no session in time", 408), events),
    answer: (now, events) => {
      let following = Infinity;
      for (const [id, { waiter, deadline }] of this._pending) {
        if (deadline > now) {
          following = Math.min(following, deadline);
        } else {
          this._pending.delete(id);
          events.push({ type: "expired", id, waiter });
        }
      }
      if (following < Infinity) this._deadlines.set("answer", following);
    },
    unfinished: (now, events) => {
      if (this._paused) return;
      // What is given up is remembered, so that a late part does not pass for a message.
      for (const incoming of [...this._unfinished.values()]) {
        if (incoming.muted) continue;
        if (now >= incoming.heard + UNFINISHED_SECONDS) {
          if (this._full(now, events)) return;
          const ref = incoming.response ? null : incoming.id;
          this._sendError(408, "the rest of the message did not come", ref);
          events.push({ type: "abandoned", id: incoming.id });
          mute(incoming);
          incoming.givenUp = true;
          incoming.heard = now;
        } else {
          this._deadlines.noLater("unfinished", incoming.heard + UNFINISHED_SECONDS);
        }
      }
    },
    drain: (_, events) => {
      this.stop();
      events.push({ type: "drain-timed-out" });
    },
  };

  /** The connection is gone: the waiters of all requests that have no answer, oldest first. */
  lost() {
    this._step("lost");
    this._out = [];
    this._unfinished.clear();
    this._unanswered.clear();
    const waiters = [...this._pending.values()].map(({ waiter }) => waiter);
    this._pending.clear();
    return waiters;
  }
}

const lenient = new TextDecoder("utf-8", { ignoreBOM: true });

const DATE = /^[A-Za-z]{3}, (\d{1,2}) ([A-Za-z]{3}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT$/;
const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/**
 * An RFC 1123 date; null for what is none. The weekday is not checked (SA-11).
 *
 * @param {string} text
 */
function readDate(text) {
  const match = DATE.exec(text);
  if (!match) return null;
  const month = MONTHS.indexOf(match[2].toLowerCase());
  const [day, year, hour, minute, second] = [1, 3, 4, 5, 6].map((at) => Number(match[at]));
  const date = new Date(Date.UTC(2000, 0, 1, hour, minute, second));
  date.setUTCFullYear(year, month, day);
  const real = month >= 0 && hour < 24 && minute < 60 && second <= 60 && date.getUTCMonth() === month;
  return real && day >= 1 ? date : null;
}
