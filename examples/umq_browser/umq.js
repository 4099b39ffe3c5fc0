// A UMQ client for web pages: calls, topics and callbacks, without attachments. Copy it.
//
//   const peer = await Umq.connect("ws://localhost:5048/");
//   console.log(await peer.call("greet", "world"));
//   peer.subscribe("ticks", (text) => console.log(text));

export class Umq {
  static connect(url, hello = "") {
    return new Promise((resolve, reject) => {
      const peer = new Umq(new WebSocket(url, "umq"));
      peer.socket.onopen = () => peer.socket.send(`H1:${hello}`);
      peer.socket.onerror = () => reject(new Error("no connection"));
      peer.welcomed = () => resolve(peer);
      peer.refused = reject;
    });
  }

  constructor(socket) {
    this.socket = socket;
    this.pending = new Map(); // call number → {resolve, reject}
    this.topics = new Map(); // topic number → function
    this.calls = 0;
    this.lastTopic = 0;
    this.ended = () => {};
    socket.onmessage = (event) => this.received(event.data);
    socket.onclose = () => this.lost(new Error("the connection was closed"));
  }

  // Call a method of the server with JSON arguments; a promise for its result.  It is rejected when
  // the server has no such method: a stock server has stored the call then.
  async call(method, ...args) {
    const text = await this.callText(JSON.stringify([method, ...args]));
    const result = text === "" ? null : JSON.parse(text);
    if (result && typeof result.stored === "boolean" && Object.keys(result).length === 1)
      throw new Error("the server has no such method, it took the call without an answer");
    return result;
  }

  callText(payload) {
    const id = ++this.calls;
    this.socket.send(`C${id.toString(36).toUpperCase()}:${payload}`);
    return new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
  }

  // Ask the server's `method` to publish to a new topic; updates go to `shown`.
  async subscribe(method, shown, ...args) {
    const topic = ++this.lastTopic;
    const id = topic.toString(36).toUpperCase();
    this.topics.set(topic, shown); // before the call: updates may come before its answer
    try {
      await this.call(method, ...args, id);
    } catch (error) {
      this.topics.delete(topic);
      throw error;
    }
    return () => {
      this.topics.delete(topic);
      this.socket.send(`U${id}:`);
    };
  }

  received(text) {
    const match = typeof text === "string" && /^([A-Z!-])([0-9A-Z]*):([^]*)$/.exec(text);
    if (!match) return this.fatal("this client takes no attachments");
    const [, command, digits, payload] = match;
    const id = digits ? parseInt(digits, 36) : 0;
    const call = this.pending.get(id);
    switch (command) {
      case "W":
        return this.welcomed();
      case "R":
        this.pending.delete(id);
        return call?.resolve(payload);
      case "E":
      case "!":
        this.pending.delete(id);
        return call?.reject(new Error(payload));
      case "T":
        return this.topics.get(id)?.(payload);
      case "D":
        return this.topics.delete(id);
      case "F":
        return this.lost(new Error(payload));
      case "C":
      case "B":
        return this.socket.send(`E${digits}:6 not an RPC server`);
    } // attributes (S, X) and late unsubscriptions (U) mean nothing to this page
  }

  fatal(text) {
    this.socket.send(`F0:3 ${text}`);
    this.socket.close();
    this.lost(new Error(text));
  }

  lost(error) {
    this.refused?.(error);
    for (const { reject } of this.pending.values()) reject(error);
    this.pending.clear();
    this.topics.clear();
    this.ended(error);
  }
}
