// Sends events to a gateway with a queue; each line says that one of them is on disk.
//
//   node events.mjs ws://localhost:5048/
//
// In a page the same lines report what visitors do.

import { UmqClient } from "../../clients/js/src/index.js";

const [url] = process.argv.slice(2);
const client = await UmqClient.connect(url, { limits: { "retry-most": 5 } });

for (const page of ["/", "/products", "/checkout"]) {
  // An event that is sent twice does no harm here: it has an id of its own.
  const event = { id: crypto.randomUUID(), page, at: new Date().toISOString() };
  const stored = await client.callMethod("visited", [event], { safe: true });
  console.log(page, stored.durable ? "is on disk" : "was taken");
}

await client.close();
