// The servers of twistd with a queue and log-ins: node stock.mjs UMQ-URL SABC-URL.

import assert from "node:assert/strict";

import { SabcClient, UmqClient, sabc, umq } from "../../clients/js/src/index.js";

const [umqUrl, sabcUrl] = process.argv.slice(2);
const login = { user: "bob", password: "secret" };

const client = await UmqClient.connect(umqUrl, { login });
const stored = await client.callMethod("event", [{ clicked: "here" }], { attachments: [Uint8Array.of(1, 2)] });
assert.deepEqual(stored, new umq.Stored(true));
assert.deepEqual((await client.remote.methods()).map(({ name }) => name), ["methods", "publish", "subscribe"]);
await assert.rejects(client.subscribe((id) => `["unknown","${id}"]`), umq.NoSuchMethod);
await client.close();
await assert.rejects(
  UmqClient.connect(umqUrl, { login: { ...login, password: "guess" } }),
  (error) => error instanceof umq.SessionRefused && error.code === 1,
);

const session = await SabcClient.connect(sabcUrl, { clientId: "bob", passcode: "secret" });
assert.equal((await session.request("safe on disk", { headers: { colour: "red" } })).text, "");
await session.close();
await assert.rejects(
  SabcClient.connect(sabcUrl, { clientId: "bob", passcode: "guess" }),
  (error) => error instanceof sabc.SessionRefused && error.code === "403",
);
console.log("all of it holds");
