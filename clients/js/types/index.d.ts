export * as umq from "./umq/index.js";
export * as sabc from "./sabc/index.js";
export { UmqClient } from "./umq/client.js";
export { SabcClient } from "./sabc/client.js";
export * from "./errors.js";
