// What the package does with real servers: node live.mjs UMQ-URL SABC-URL WSS-URL CA-FILE; exits 0 if all of it holds.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { WebSocket } from "../../clients/js/node_modules/ws/wrapper.mjs";

import { SabcClient, UmqClient, sabc, umq } from "../../clients/js/src/index.js";

const [umqUrl, sabcUrl, secureUrl, authority] = process.argv.slice(2);
const bytes = (...values) => Uint8Array.from(values);
const bounded = { limits: { "retry-first": 0.01, "refused-first": 0.01 } };

async function umqSession() {
  const heard = [];
  const failed = [];
  const client = await UmqClient.connect(umqUrl, {
    ...bounded,
    onHookError: ({ message }) => failed.push(message),
    login: { user: "me", password: "secret" },
    onAttribute: (name, one) => heard.push([name, one?.value, one?.attachments.length]),
    onCall: ({ payload }) => `you said ${payload}`,
    methods: {
      ticks: umq.withRequest(({ session }, id) => {
        const topic = session.openTopic(id);
        for (let number = 1; number <= 3; number++) topic.publish(`tick ${number}`);
        return true;
      }),
    },
  });
  const { remote } = client;

  // UM-09, UM-10: many calls at once, attachments both ways, also late and lost ones.
  const numbers = Array.from({ length: 50 }, (_, number) => `n${number}`);
  assert.deepEqual(await Promise.all(numbers.map((text) => remote.echo(text))), numbers);
  const late = new Promise((resolve) => setTimeout(resolve, 1, bytes(4, 5)));
  const lost = Promise.reject(new Error("gone"));
  const echoed = await client.call('["echo","Ünï"]', {
    attachments: [bytes(1), late, new Blob(["blob"]), lost, new Uint8Array(300_000)],
  });
  assert.equal(echoed.payload, '"Ünï"');
  assert.deepEqual(
    echoed.attachments.map((one) => one.length),
    [1, 2, 4, 4, 300_000],
  );
  assert.deepEqual(failed, ["gone"]);
  // UM-19: pieces of a file go when their turn has come, and those of the answer come one by one.
  const file = new Blob([Uint8Array.from({ length: 3_000_001 }, (_, number) => number % 251)]);
  const options = { attachments: umq.pieces(file, 1_000_000), streamed: true };
  const { payload, attachments, stream } = await client.call('["echo","file"]', options);
  assert.deepEqual([payload, attachments, stream.count], ['"file"', [], 4]);
  const came = [];
  for await (const piece of stream) came.push(piece);
  assert.deepEqual(new Uint8Array(await new Blob(came).arrayBuffer()), new Uint8Array(await file.arrayBuffer()));

  await assert.rejects(remote.buy("bread"), (error) => error instanceof umq.RemoteError && error.type === "SoldOut");
  await assert.rejects(remote.nothing(), umq.CallFailed);

  // UM-11: callbacks.
  const callback = client.registerCallback(({ payload, attachments }) => `${payload} done (${attachments[0].length})`);
  assert.deepEqual(await remote.work(callback), ["one done (3)", "two done (3)"]);

  // UM-12 … UM-14: topics, in both directions.
  const updates = [];
  const news = await client.subscribe((id) => `["subscribe","news","${id}"]`, ({ payload }) => updates.push(payload));
  assert.equal(await remote.publish("news", "hello"), 1);
  assert.deepEqual(await remote.listen(3), ["tick 1", "tick 2", "tick 3"]);
  assert.equal(await remote.ask("something"), "you said something");

  // UM-15, UM-16: attributes, in both directions.
  client.setAttribute("mood", " good ");
  assert.equal(await remote.attribute("mood"), " good ");
  await remote.set("theirs", "value");
  assert.deepEqual(heard, [["theirs", "value", 1]]);
  assert.equal(client.attributes.get("theirs").value, "value");

  // It comes back: subscriptions, attributes and callbacks as well; what was unsettled is told.
  await assert.rejects(remote.drop(), umq.ConnectionClosed);
  assert.equal(await remote.attribute("mood"), " good ");
  assert.equal(await client.callMethod("publish", ["news", "again"], { safe: true }), 1);
  assert.deepEqual(updates, ["hello", "again"]);
  assert.deepEqual(await remote.work(callback), ["one done (3)", "two done (3)"]);
  news.unsubscribe();
  assert.equal(await remote.publish("news", "nobody"), 0);

  const unsettled = assert.rejects(client.call('["listen",9]', { timeout: 0.01 }), umq.TimedOut);
  await unsettled;
  await client.close();
  await assert.rejects(client.call("after"), umq.ConnectionClosed);
  await assert.rejects(
    UmqClient.connect(umqUrl, { hello: "me:wrong" }),
    (error) => error instanceof umq.SessionRefused && error.code === 1,
  );
  await assert.rejects(UmqClient.connect("ws://127.0.0.1:1/"), umq.ConnectionClosed);
}

async function sabcSession() {
  const heard = [];
  const client = await SabcClient.connect(sabcUrl, {
    ...bounded,
    clientId: "me",
    onRequest: ({ text, headers }) => `${text} ${headers.n} done`,
    onMessage: ({ text }) => heard.push(text),
    onError: ({ code, message }) => heard.push(`${code} ${message}`),
  });
  const answers = await Promise.all(Array.from({ length: 50 }, (_, number) => client.request(`n${number}`)));
  assert.deepEqual(
    answers.map(({ text }) => text),
    answers.map((_, number) => `n${number}`),
  );
  const body = bytes(0xff, 1, 2, 0xfe);
  assert.deepEqual(bytes(...(await client.request(body)).body), body);
  const large = "Grüße \0 ".repeat(20_000); // in parts, both ways
  assert.equal((await client.request(large)).text, large);
  async function* pieces() {
    for (let number = 0; number < 5; number++) yield `piece ${number}, `;
  }
  assert.equal((await client.request(pieces())).text, "piece 0, piece 1, piece 2, piece 3, piece 4, ");
  assert.equal((await client.request("push")).text, "work 1 done");
  await client.request("error");
  assert.deepEqual(heard, ["418 teapot", "news"]);
  await assert.rejects(client.request("refuse"), (error) => error instanceof sabc.Refused && error.code === "409");
  await assert.rejects(client.request("x".repeat(3 << 20)), sabc.LimitExceeded);
  await client.sendOnly("no answer");
  await assert.rejects(client.request("drop"), sabc.ConnectionClosed);
  assert.equal((await client.request("and again")).text, "and again");
  await client.close();
  await assert.rejects(client.request("after"), sabc.ConnectionClosed);
}

/** A certificate is refused, or accepted because its authority is known. */
async function secureSession() {
  const refused = (url, Client, why) =>
    assert.rejects(
      Client.connect(url, { clientId: "me" }),
      (error) => error.constructor === umq.ConnectionClosed && why.test(error.message),
    );
  await refused(secureUrl, UmqClient, /no connection to wss:.*(certificate|refused)/);
  await refused(secureUrl.replace("wss:", "ws:"), UmqClient, /no connection to ws:/);
  await refused(umqUrl.replace("ws:", "wss:"), UmqClient, /no connection to wss:/);
  await refused(umqUrl, SabcClient, /no connection to ws:/); // another protocol
  const ca = readFileSync(authority);
  class Trusting extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols, { ca });
    }
  }
  const client = await UmqClient.connect(secureUrl, { WebSocket: Trusting });
  assert.equal(await client.remote.greet("you"), "Hello, you!");
  await client.close();
}

await umqSession();
console.log("umq: all of it holds");
await sabcSession();
console.log("sabc: all of it holds");
await secureSession();
console.log("TLS: all of it holds");
