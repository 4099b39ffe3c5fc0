// A slow program in Node: node slow.mjs UMQ-URL SABC-URL; says what holds.

import { WebSocket } from "../../clients/js/node_modules/ws/wrapper.mjs";

import * as client from "../../clients/js/src/index.js";
import { bounded, files, paused, working } from "./programs.mjs";

/** As those of browsers. */
class Unpausable extends WebSocket {
  get pause() {
    return undefined;
  }
}

const [umqUrl, sabcUrl] = process.argv.slice(2);
await files(client, umqUrl);
console.log("files in pieces");
await paused(client, umqUrl, { WebSocket });
console.log("paused");
await bounded(client, umqUrl, Unpausable);
console.log("bounded");
await working(client, sabcUrl, { WebSocket });
console.log("working");
