// Sends events to a gateway with a queue; each line says that one of them is on disk.
//
//   node events.mjs ws://localhost:5048/
//
// In a page the same lines report what visitors do.

import { UmqClient } from "../../clients/js/src/index.js";

const [url] = process.argv.slice(2);
const client = await UmqClient.connect(url, { limits: { "retry-most": 5 } });

for (const page of ["/", "/products", "/checkout"]) {
  const event = { page, at: new Date().toISOString() };
  // safe: if the connection is lost before the answer, it is sent again, and may be stored twice.
  const stored = await client.callMethod("visited", [event], { safe: true });
  console.log(page, stored.durable ? "is on disk" : "was accepted");
}

await client.close();
