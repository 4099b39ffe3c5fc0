/** A world without time and sockets: tests move its clock and are the other side of its sockets. */

import { UmqClient } from "../src/index.js";

export class FakeSocket {
  constructor() {
    this.sent = [];
    this.bufferedAmount = 0;
    this.closedWith = null;
    this.onopen = this.onmessage = this.onclose = this.onerror = null;
  }

  send(data) {
    this.sent.push(data);
  }

  /** What was sent since the last call. */
  take() {
    return this.sent.splice(0);
  }

  close(code) {
    this.closedWith = code;
    queueMicrotask(() => this.onclose?.({}));
  }

  /** The other side says something. */
  says(...messages) {
    for (const data of messages) this.onmessage?.({ data });
  }

  /** The connection breaks. */
  breaks() {
    this.onclose?.({});
  }
}

export class FakeWorld {
  constructor() {
    this.time = 0;
    this.timers = new Map();
    this.last = 0;
    this.sockets = [];
    this.asked = []; // subprotocols, one for each attempt
    this.reported = []; // errors in hooks
    this.unreachable = 0; // how many attempts fail from now on
  }

  now = () => this.time;
  random = () => 1;
  report = (error) => this.reported.push(error.message);

  after = (seconds, f) => {
    const number = ++this.last;
    this.timers.set(number, [this.time + seconds, f]);
    return () => this.timers.delete(number);
  };

  open = async (url, protocol) => {
    this.asked.push(protocol);
    if (this.unreachable-- > 0) throw new Error("not to be reached");
    const socket = new FakeSocket();
    this.sockets.push(socket);
    return socket;
  };

  /** The socket that was opened last. */
  get socket() {
    return this.sockets.at(-1);
  }

  /** Let this much time pass; what is due happens. */
  async pass(seconds) {
    const end = this.time + seconds;
    for (;;) {
      await turn();
      const due = [...this.timers].filter(([, [at]]) => at <= end).sort((a, b) => a[1][0] - b[1][0])[0];
      if (!due) break;
      this.timers.delete(due[0]);
      this.time = Math.max(this.time, due[1][0]);
      due[1][1]();
    }
    this.time = end;
    await turn();
  }
}

/** All that promises have to do is done. */
export function turn() {
  return new Promise((resolve) => setImmediate(resolve));
}

/** A UMQ client whose session stands: with its world, its socket, and what it `said` to have one. */
export async function connected(options = {}, world = new FakeWorld()) {
  const connecting = UmqClient.connect("ws://server/", { world, ...options });
  await turn();
  const { socket } = world;
  const said = socket.take();
  socket.says("W1:welcome");
  return { client: await connecting, world, said, socket };
}
