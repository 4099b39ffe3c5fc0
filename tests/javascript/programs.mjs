// Programs that are slower than the network, in Node and in pages. Each function throws if something does not hold.

const KIB = 1024;
const MIB = 1024 * KIB;
const turn = () => new Promise((resolve) => setTimeout(resolve, 1));

function check(holds, what) {
  if (!holds) throw new Error(what);
}

/** The most that `backlog` has counted from now on. */
function watched(backlog) {
  const most = { bytes: 0 };
  const { count } = backlog;
  backlog.count = (...given) => {
    count.apply(backlog, given);
    most.bytes = Math.max(most.bytes, backlog.bytes);
  };
  return most;
}

async function until(holds) {
  while (!holds()) await turn();
}

/** UM-19: a file goes in pieces and comes back in pieces; who leaves the loop goes on with other calls. */
export async function files({ UmqClient, umq }, url, options = {}) {
  const client = await UmqClient.connect(url, options);
  const file = new Blob([Uint8Array.from({ length: 3 * MIB + 1 }, (_, number) => number % 251)]);
  const attachments = umq.pieces(file, MIB);
  const { stream } = await client.call('["echo","a file"]', { attachments, streamed: true });
  const came = [];
  for await (const piece of stream) came.push(piece);
  const [sent, back] = await Promise.all([file, new Blob(came)].map((one) => one.arrayBuffer()));
  check(came.length === 4 && new Uint8Array(back).every((byte, at) => byte === new Uint8Array(sent)[at]), "the same file");
  const left = await client.call(`["large",8,${MIB}]`, { streamed: true });
  for await (const piece of left.stream) {
    check(piece.length === MIB, "a piece");
    break;
  }
  check((await client.remote.greet("again")) === "Hello, again!", "a call behind what nobody wants");
  const abort = new AbortController();
  const given = await client.call(`["large",8,${MIB}]`, { streamed: true, signal: abort.signal });
  abort.abort(new Error("enough"));
  const why = await given.stream.next().catch((error) => error.message);
  check(why === "enough", "a stream that is aborted");
  check((await client.remote.greet("again")) === "Hello, again!", "a call behind it");
  await client.close();
}

/** UM-19, UM-21: what nobody takes pauses the socket; later all of it arrives, and memory stays bounded. */
export async function paused({ UmqClient }, url, options = {}) {
  const client = await UmqClient.connect(url, { ...options, limits: { "backlog-bytes": 4 * MIB } });
  const most = watched(client._backlog);
  const { stream } = await client.call(`["large",32,${MIB}]`, { streamed: true });
  check((await stream.next()).value.length === MIB, "the first piece");
  await until(() => client.session.paused);
  const asked = client.remote.greet("meanwhile");
  let bytes = MIB;
  for await (const piece of stream) bytes += piece.length;
  check(bytes === 32 * MIB, "all pieces");
  check((await asked) === "Hello, meanwhile!", "an answer behind them");
  check(most.bytes > MIB && most.bytes <= 4 * MIB, `${most.bytes} bytes waited`);

  const updates = await client.subscribe((id) => `["flood","${id}",400,${32 * KIB}]`);
  await until(() => client.session.paused);
  let count = 0;
  for await (const { payload } of updates) count += payload.length === 32 * KIB;
  check(count === 400, `${count} updates`);
  check((await updates.ended) === "closed", "the server has closed it");
  check(most.bytes <= 4 * MIB, `${most.bytes} bytes waited`);

  // A hook that returns a promise is as slow as the promise.
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const hooked = await client.subscribe((id) => `["flood","${id}",400,${32 * KIB}]`, () => released);
  await until(() => client.session.paused);
  release();
  check((await hooked.ended) === "closed", "the hook had all of it");
  await client.close();
  check(most.bytes <= 4 * MIB, `${most.bytes} bytes waited`);
}

/** A socket that cannot be paused: the bound is an error of what is too slow, and of nothing else. */
export async function bounded({ UmqClient, umq }, url, WebSocket) {
  const client = await UmqClient.connect(url, { WebSocket, limits: { "backlog-bytes": 4 * MIB } });
  const most = watched(client._backlog);
  const { stream } = await client.call(`["large",32,${MIB}]`, { streamed: true });
  await until(() => client._backlog.bytes === 0 && most.bytes > 0);
  check((await stream.next().catch((error) => error)) instanceof umq.LimitExceeded, "the stream is given up");
  const updates = await client.subscribe((id) => `["flood","${id}",400,${32 * KIB}]`);
  check((await updates.ended) === "slow", "the subscription is given up");
  check((await client.remote.greet("you")) === "Hello, you!", "the session goes on");
  check(most.bytes <= 5 * MIB, `${most.bytes} bytes waited`); // one more message
  await client.close();
}

/** SA-17: messages whose hooks are not done pause the socket. */
export async function working({ SabcClient }, url, options = {}) {
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const heard = [];
  const client = await SabcClient.connect(url, {
    ...options,
    clientId: "me",
    limits: { "backlog-bytes": 4 * MIB },
    onMessage: async ({ text }) => {
      await released;
      heard.push(parseInt(text));
    },
  });
  const most = watched(client.session._backlog);
  const asked = client.request("flood 200");
  await until(() => client.session.paused);
  release();
  await asked;
  await until(() => heard.length === 200);
  check(heard.every((number, at) => number === at), "in order");
  check(most.bytes > MIB && most.bytes <= 4 * MIB, `${most.bytes} bytes waited`);
  await client.close();
}
