/** How attachments and messages meet, and in which order messages are delivered (UM-04, UM-19). */

import { ProtocolFault } from "../errors.js";
import { Incoming } from "./attachments.js";
import { Sending } from "./sending.js";
import { Code, encode } from "./wire.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./events.js").Ordered} Ordered */
/** @typedef {import("./events.js").ResultEvent} ResultEvent */
/** @typedef {import("./events.js").UmqEvent} UmqEvent */
/** @typedef {import("./terms.js").UmqLimits} UmqLimits */
/** @typedef {import("./wire.js").Frame} Frame */

/** Collects the attachments of the peer's messages; a subclass has `_emit`, what a whole message does. */
export class Arriving extends Sending {
  /**
   * @param {Partial<UmqLimits>} limits
   * @param {number} now
   */
  constructor(limits, now) {
    super(limits, now);
    /** @type {Incoming<any>} */
    this._incoming = new Incoming();
    this._incomingSince = now;
    this._paused = false;
    /** @type {UmqEvent[] | null} What waits for the attachments of `W`. */
    this._barrier = null;
  }

  /**
   * The peer broke the protocol: say `F` as the last command (UM-08, UM-18).
   *
   * @param {ProtocolFault} fault
   * @param {UmqEvent[]} events
   */
  _fail(fault, events) {
    this._step("faulted");
    this._out.push(encode("F", "0", `${fault.code} ${fault.message}`));
    this._end();
    events.push({ type: "fault", fault });
  }

  /**
   * @param {string} reason
   * @param {string} text
   * @param {UmqEvent[]} events
   * @param {number} [code]
   */
  _fault(reason, text, events, code = Code.FORMAT) {
    this._fail(new ProtocolFault(reason, text, code), events);
  }

  /** @override */
  _end() {
    super._end();
    this._barrier = null;
  }

  /**
   * Deliver `message` now, or when its attachments are there and its turn has come.
   *
   * @param {Extract<UmqEvent, {attachments: Attachment[]}>} message
   * @param {Frame} frame
   * @param {string | null} key
   * @param {UmqEvent[]} events
   */
  _deliver(message, frame, key, events) {
    if (frame.attachments) return this._announce(message, frame, key, events);
    if (key === null) this._emit(message, events);
    else this._inTurn(message, key, frame.payload.length, events);
    return null;
  }

  /**
   * Deliver a complete message, behind earlier ones of its key (UM-04).
   *
   * @param {Ordered} message
   * @param {string} key
   * @param {number} weight
   * @param {UmqEvent[]} events
   */
  _inTurn(message, key, weight, events) {
    if (!this._incoming.queued(message, key, weight)) this._emit(message, events);
    else if (this._incoming.waiting > this.limits["waiting-messages"])
      this._fault("waiting-messages", "too many messages wait for attachments", events);
    else this._tooMuchWaits(events);
  }

  /**
   * @param {Extract<UmqEvent, {attachments: Attachment[]}> | null} message
   * @param {Frame} frame
   * @param {string | null} key
   * @param {UmqEvent[]} events
   */
  _announce(message, frame, key, events) {
    if (this._incoming.open >= this.limits.announcements) {
      this._fault("announcements", "too many messages with attachments to come", events);
      return null;
    }
    if (!this._incoming.open) {
      this._incomingSince = this._now;
      this._deadlines.noLater("attachment", this._now + this.limits["attachment-seconds"]);
    }
    const announcement = this._incoming.announce(message, frame.attachments, key, frame.payload.length);
    return this._tooMuchWaits(events) ? null : announcement;
  }

  /**
   * A message that nobody gets still owns its slots (UM-04).
   *
   * @param {Frame} frame
   * @param {UmqEvent[]} events
   */
  _discard(frame, events) {
    if (frame.attachments) this._announce(null, frame, null, events);
  }

  /** @param {UmqEvent[]} events */
  _tooMuchWaits(events) {
    if (this._incoming.bytes <= this.limits["attachments-bytes"]) return false;
    this._fault("attachments-bytes", "what waits for attachments is above its limit", events);
    return true;
  }

  /**
   * @param {Attachment} attachment
   * @param {UmqEvent[]} events
   */
  _fill(attachment, events) {
    if (!this._incoming.open) {
      this._fault("stray", "an attachment which no message announced", events);
      return;
    }
    this._incomingSince = this._now;
    const { first } = this._incoming;
    const ready = this._incoming.fill(attachment);
    if (this._tooMuchWaits(events)) return;
    if (first?.streamed && first.message)
      this._give({ type: "attachment", result: first.message, attachment }, events);
    for (const message of ready) this._emit(message, events);
  }

  /**
   * Return the event to the caller, unless the attachments of `W` are still to come (UM-07).
   *
   * @param {UmqEvent} event
   * @param {UmqEvent[]} events
   */
  _give(event, events) {
    (this._barrier ?? events).push(event);
  }

  /**
   * Do what `message` says and deliver it: it is complete and its turn has come.
   *
   * @param {Ordered} _message
   * @param {UmqEvent[]} _events
   */
  _emit(_message, _events) {
    throw new TypeError("a subclass knows what a message does");
  }

  /**
   * Nobody waits for this call any more; its answer will be ignored. False if it is too late.
   *
   * @param {string} number
   */
  cancel(number) {
    const call = this._pending.get(number);
    if (!call) return false;
    this._pending.delete(number);
    if (call.answer) this._incoming.forget(call.answer);
    return true;
  }

  /**
   * Nobody wants the attachments that are still to come of a streamed answer.
   *
   * @param {ResultEvent} result
   */
  dropAttachments(result) {
    this._incoming.drop(result);
  }

  // ── while the peer is not read, and when nothing comes ───────────────────────────────────────

  /** @override */
  paused() {
    this._paused = true;
  }

  /** @override */
  resumed() {
    this._paused = false;
    if (!this._incoming.open || this.closed) return;
    this._incomingSince = this._now;
    this._deadlines.noLater("attachment", this._now + this.limits["attachment-seconds"]);
  }

  /**
   * @param {number} now
   * @param {UmqEvent[]} events
   */
  _attachmentLate(now, events) {
    if (this._paused || !this._incoming.open) return;
    const deadline = this._incomingSince + this.limits["attachment-seconds"];
    if (now < deadline) this._deadlines.set("attachment", deadline);
    else this._fault("attachment-seconds", "the next attachment did not come in time", events);
  }
}
