/** What a client's promises are rejected with. */

/** The base of all errors of this package; `name` is the name of the class. */
export class MsgprotoError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

/** There is no session, or it ended before the answer came. */
export class ConnectionClosed extends MsgprotoError {}

/** No answer came in time. */
export class TimedOut extends MsgprotoError {}

/** A limit of this side is met; nothing was sent. */
export class LimitExceeded extends MsgprotoError {}

/** The peer broke the protocol: `reason` names the rule, `code` is what the peer was told. */
export class ProtocolFault extends MsgprotoError {
  /**
   * @param {string} reason
   * @param {string} message
   * @param {number} code
   */
  constructor(reason, message, code) {
    super(message);
    this.reason = reason;
    this.code = code;
  }
}

/**
 * The peer said no. Throw it from a function that the peer calls to refuse a call.
 *
 * `code` is a number in UMQ and text in sABC; null if the peer gave none.
 */
export class Refused extends MsgprotoError {
  /**
   * @param {string} message
   * @param {number | string | null} [code]
   */
  constructor(message, code = null) {
    super(message);
    this.code = code;
  }
}

/** The server refused or ended the session. */
export class SessionRefused extends Refused {}

const CODE = /^([0-9]{1,9})(?: ([^]*))?$/;

/** The peer answered a UMQ call with `E`; `payload` is its whole text. */
export class CallFailed extends Refused {
  /** @param {string} payload */
  constructor(payload) {
    const match = CODE.exec(payload);
    super(match ? (match[2] ?? "") : payload, match ? Number(match[1]) : null);
    this.payload = payload;
  }
}

/**
 * A method of the peer raised an error that it registered for its peers: `type` is its name there.
 *
 * Throw one from a method of yours, and the peer gets it as such.
 */
export class RemoteError extends CallFailed {
  /**
   * @param {string} type
   * @param {string} message
   */
  constructor(type, message) {
    super(JSON.stringify({ type, message }));
    this.message = message;
    this.type = type;
  }
}

/** The server has no such method: it stored the call, and that is all it did. */
export class NoSuchMethod extends Refused {
  /** @param {boolean} durable */
  constructor(durable) {
    const done = durable ? "stored the call" : "gave the call to its application";
    super(`the server has no such method, it ${done}`);
  }
}

/** The sender could not deliver this attachment; it stands in its place among the others. */
export class AttachmentLost extends MsgprotoError {}

/** An answer that was to be JSON is none. */
export class NotJson extends MsgprotoError {}
