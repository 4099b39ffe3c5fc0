/**
 * The client's side of sABC on WebSocket without I/O: messages in, events and messages out.
 *
 * Its caller gives it what arrives (`receive`), sends what `outputs` returns after each call, and
 * calls `advance` at the time that `deadline` names; it answers each request with `answer` or
 * `refuse`. `now` is in seconds of any clock that never goes back.
 */

import { ConnectionClosed, LimitExceeded, ProtocolFault } from "../errors.js";
import { limitsOf } from "../limits.js";
import { TimedMachine } from "../machine.js";
import { Outgoing } from "./outgoing.js";
import { CLIENT, LIMITS, MISPLACED } from "./terms.js";
import { ANNOUNCEMENTS, COMMANDS, RESERVED, encode, endsEarly, headerLine, readFrame, textOf, utf8 } from "./wire.js";

/** @typedef {import("./terms.js").SabcLimits} SabcLimits */
/** @typedef {import("./terms.js").State} State */
/** @typedef {import("./wire.js").Frame} Frame */
/** @typedef {Readonly<Record<string, string>>} Headers */

/**
 * @typedef {object} Received
 * @property {string} id
 * @property {Headers} headers those that the protocol does not reserve
 * @property {Uint8Array} body
 * @property {boolean} truncated it was above `message-octets` and was cut
 */

/**
 * @typedef {{type: "granted", expires: Date | null, headers: Headers}
 *   | {type: "refused", code: string | null, text: string}
 *   | {type: "request" | "send-only"} & Received
 *   | {type: "response", waiter: unknown} & Received
 *   | {type: "failed", id: string, waiter: unknown, code: string | null, text: string}
 *   | {type: "expired", id: string, waiter: unknown}
 *   | {type: "error", code: string | null, body: Uint8Array, headers: Headers}
 *   | {type: "frame-refused", code: number, text: string, id: string | null}
 *   | {type: "frame-discarded", id: string | null}
 *   | {type: "abandoned", id: string | null}
 *   | {type: "disconnecting"}
 *   | {type: "drain-timed-out"}
 *   | {type: "fault", fault: ProtocolFault}} SabcEvent
 */

/**
 * A message that is being received, or (muted) what is to be skipped of one.
 *
 * @typedef {object} Incoming
 * @property {string | null} key
 * @property {string | null} id
 * @property {boolean} response
 * @property {Record<string, string>} headers
 * @property {Uint8Array[]} parts
 * @property {boolean} sendOnly
 * @property {number} size
 * @property {boolean} cut
 * @property {boolean} muted
 * @property {number} heard
 */

const EMPTY = new Uint8Array(0);
const OVERHEAD_LINES = 6; // the lines that our own messages have beside an application's headers
const OVERHEAD_OCTETS = 1536;

/**
 * One session of a client.
 *
 * @extends {TimedMachine<State, SabcEvent>}
 */
export class Machine extends TimedMachine {
  /** @param {{limits?: Partial<SabcLimits>, now?: number}} [options] */
  constructor({ limits = {}, now = 0 } = {}) {
    super(CLIENT, "idle", now);
    this.limits = limitsOf(LIMITS, limits);
    this.bounds = {
      lines: this.limits["header-lines"],
      lineOctets: this.limits["header-line-octets"],
      blockOctets: this.limits["header-block-octets"],
    };
    /** @type {Uint8Array[]} */
    this._out = [];
    this._deadlines.set("connect", now + this.limits["connect-seconds"]);
    this._sessionId = "";
    this._number = 0;
    /** The largest message that the server has said it accepts. @type {number | null} */
    this.peerOctets = null;
    /** @type {Map<string, {waiter: unknown, deadline: number}>} */
    this._pending = new Map();
    /** @type {Map<string, boolean>} The server's requests by id: whether they were cut. */
    this._unanswered = new Map();
    /** @type {Map<string, Incoming>} */
    this._unfinished = new Map();
    /** Originals of ours whose last part was not sent. */
    this._sending = 0;
  }

  /** Requests of ours without an answer. */
  get outstanding() {
    return this._pending.size;
  }

  /** Return and forget the messages to send: text, or octets if the body is not UTF-8 (SA-25). */
  outputs() {
    const out = this._out;
    this._out = [];
    return out.map((octets) => textOf(octets) ?? octets);
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
      this._deadlines.noLater("unfinished", this._now + this.limits["unfinished-seconds"]);
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
    const octets = headers.get("message-octets") ?? "";
    if (/^[0-9]{1,18}$/.test(octets)) this.peerOctets = Number(octets);
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
    this._grow(incoming, frame.headOctets, events);
    if (this.closed) return;
    if (!incoming.muted && !incoming.cut) {
      const room = Math.max(0, this.limits["message-octets"] - incoming.size);
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
   * So many octets more of a message came (SA-22).
   *
   * @param {Incoming} incoming
   * @param {number} octets
   * @param {SabcEvent[]} events
   * @param {boolean} [trim] the body may end within a character
   */
  _grow(incoming, octets, events, trim = true) {
    const most = this.limits["message-octets"];
    incoming.size += octets;
    if (incoming.size <= most) return;
    if (!incoming.muted && !incoming.cut) {
      const body = joined(incoming.parts);
      incoming.parts = [trim ? wholeCharacters(body) : body];
      incoming.cut = true;
    }
    if (incoming.size > 2 * most) {
      const ref = incoming.response ? null : incoming.id;
      mute(incoming);
      this._fail(new ProtocolFault("message-octets", "the message is more than twice too large", 413), events, ref);
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
      this._grow(incoming, frame.endOctets, events, false);
      if (this.closed) return;
      if (!incoming.muted) this._deliver(incoming, joined(incoming.parts), events);
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
    if (incoming.muted && muted >= most) {
      this._fail(new ProtocolFault("unfinished-messages", "too many refused messages go on", 429), events);
      return;
    }
    this._unfinished.set(key, incoming);
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
      // The peer has only the beginning of our message: it has not taken it (HO-01).
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
      const seconds = this.limits["unfinished-seconds"];
      for (const [key, incoming] of this._unfinished) {
        if (now >= incoming.heard + seconds) {
          if (incoming.muted) {
            this._unfinished.delete(key);
            continue;
          }
          const ref = incoming.response ? null : incoming.id;
          this._sendError(408, "the rest of the message did not come", ref);
          events.push({ type: "abandoned", id: incoming.id });
          mute(incoming);
          incoming.heard = now;
        }
        this._deadlines.noLater("unfinished", incoming.heard + seconds);
      }
    },
    drain: (_, events) => {
      this.stop();
      events.push({ type: "drain-timed-out" });
    },
  };

  // ── verbs ────────────────────────────────────────────────────────────────────────────────────

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
    own.push(`message-octets::${this.limits["message-octets"]}`);
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
      if (utf8(line).length > this.bounds.lineOctets)
        throw new LimitExceeded(`a header is above ${this.bounds.lineOctets} octets`);
      return `${line}\r\n`;
    });
    if (lines.length > this.bounds.lines - OVERHEAD_LINES)
      throw new LimitExceeded(`${lines.length} headers are too many`);
    const text = lines.join("");
    if (utf8(text).length > Math.max(0, this.bounds.blockOctets - OVERHEAD_OCTETS))
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
   * Queue a message in as few frames as `part-octets` allows (SA-18); TypeError for a body that the
   * framing cannot carry (SA-21). `extra` stands on the first frame alone.
   *
   * @param {string} lines
   * @param {string} extra
   * @param {Uint8Array} body
   */
  _sendMessage(lines, extra, body) {
    if (endsEarly(body)) throw new TypeError("a body cannot hold an end mark, CR LF CR LF NUL (SA-21)");
    if (body.length <= this.limits["part-octets"]) {
      this._sendPart(lines + extra, body, true);
      return;
    }
    const outgoing = new Outgoing(this, lines, extra, null);
    outgoing.write(body);
    outgoing.finish();
  }

  /** How large a message of ours may be; a server that does not say is assumed to be like us. */
  get sentOctetsMax() {
    return this.peerOctets ?? this.limits["message-octets"];
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
    let octets = body.length;
    if (octets <= this.sentOctetsMax) {
      this._sendMessage(lines, extra, body);
      octets = this._out.slice(before).reduce((sum, frame) => sum + frame.length, 0);
    }
    if (octets > this.sentOctetsMax) {
      this._out.length = before;
      throw new LimitExceeded(`a message of ${octets} octets is above message-octets=${this.sentOctetsMax}`);
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

  /** Ask the server to answer what it has and to close (SA-12). */
  disconnect() {
    if (!this._step("disconnect-sent")) throw new ConnectionClosed("there is no session");
    const seconds = this.limits[this._pending.size ? "session-drain" : "leave-seconds"];
    this._deadlines.set("drain", this._now + seconds);
    this._out.push(encode(`DISCONNECT\r\nsession-id::${this._sessionId}\r\n`, EMPTY, true));
  }

  /** Close at once: DISCONNECTING if there is a session (SA-13). */
  stop() {
    if (this.closed) return;
    if (this._sessionId)
      this._out.push(encode(`DISCONNECTING\r\nsession-id::${this._sessionId}\r\n`, EMPTY, true));
    this._step("stopped");
  }

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

/**
 * @param {string | null} key
 * @param {string | null} id
 * @param {boolean} response
 * @param {number} now
 * @returns {Incoming}
 */
function newIncoming(key, id, response, now) {
  return { key, id, response, headers: {}, parts: [], sendOnly: false, size: 0, cut: false, muted: false, heard: now };
}

/**
 * Deliver nothing (more) of it.
 *
 * @param {Incoming} incoming
 */
function mute(incoming) {
  incoming.muted = true;
  incoming.parts = [];
  incoming.headers = {};
}

/** @param {Uint8Array[]} parts */
function joined(parts) {
  if (parts.length === 1) return parts[0];
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/**
 * `body` without an unfinished last UTF-8 character; as it is if it is not UTF-8 (SA-22).
 *
 * @param {Uint8Array} body
 */
function wholeCharacters(body) {
  for (let back = 0; back <= Math.min(3, body.length); back++) {
    const rest = body.subarray(body.length - back);
    if (textOf(body.subarray(0, body.length - back)) !== null && (!back || unfinished(rest)))
      return body.subarray(0, body.length - back);
  }
  return body;
}

/**
 * Whether these octets begin a character that is longer.
 *
 * @param {Uint8Array} octets
 */
function unfinished(octets) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(octets, { stream: true }) === "";
  } catch {
    return false;
  }
}

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
