"use strict";
// The live page of a gateway.  What a peer has said is only ever written with textContent.

const STALE_MS = 10000;
const SESSIONS_MS = 10000; // the table of sessions is asked for this often, the sums come every 2 s

const at = (id) => document.getElementById(id);
let flow = null; // all samples that are known
let machines = {};
let last = null; // the figures of the last sample
let sorting = { column: "protocol", down: false };
let chosen = { protocol: "", state: "" };
let asked = -Infinity; // when the sessions were asked for
let shownTotal = -1; // how many sessions there were then
let search = 0; // numbers the searches: an answer that comes late is not shown
let heard = 0;

function made(name, text, kind) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function number(value) {
  return typeof value === "number" ? value.toLocaleString("en") : String(value ?? "–");
}

function bytes(value) {
  if (value === null || value === undefined) return "no limit";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
  return `${value.toFixed(place && value < 100 ? 1 : 0)} ${units[place]}`;
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

function since(now, microseconds) {
  return microseconds ? `${duration(Math.max(0, (now - microseconds) / 1e6))} ago` : "–";
}

function pairs(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
}

function table(element, columns, rows, none, sorted) {
  if (!rows.length) {
    const row = made("tr");
    row.append(made("td", none, "none"));
    element.replaceChildren(row);
    return;
  }
  const head = made("tr");
  for (const column of columns) {
    const cell = made("th", sorted ? undefined : column);
    if (sorted) {
      const arrow = sorting.column === column ? (sorting.down ? " ↓" : " ↑") : "";
      const button = made("button", column + arrow);
      button.type = "button";
      button.onclick = () => sorted(column);
      cell.append(button);
    }
    head.append(cell);
  }
  element.replaceChildren(head, ...rows.map((cells) => {
    const row = made("tr");
    row.append(...cells.map((cell) => {
      const shown = made("td", number(cell), typeof cell === "number" ? "number" : "");
      shown.title = shown.textContent;
      return shown;
    }));
    return row;
  }));
  [...head.children].forEach((cell, place) => {
    if (rows.every((cells) => typeof cells[place] === "number")) cell.className = "number";
  });
}

// A sample brings what is new of the flow; the first one brings all.
function remember(fresh) {
  if (!fresh || !flow) { flow = fresh; return; }
  const known = flow.at.at(-1) ?? 0;
  const from = fresh.at.findIndex((one) => one > known);
  if (from < 0) return;
  const joined = (old, more) => [...old, ...more.slice(from)].slice(-SAMPLES);
  const before = flow.at.length;
  flow.at = joined(flow.at, fresh.at);
  for (const [name, columns] of Object.entries(fresh.protocols)) {
    const old = flow.protocols[name] ?? {};
    flow.protocols[name] = Object.fromEntries(Object.entries(columns).map(([column, values]) =>
      [column, joined(old[column] ?? Array(before).fill(null), values)]));
  }
}

function showFlow(protocols) {
  const empty = { messages_per_second: [], bytes_per_second: [], ack_p50_seconds: [], ack_p99_seconds: [] };
  at("flow").replaceChildren(...Object.keys(protocols).map((name, place) =>
    figureOf(name, flow?.protocols[name] ?? empty, place)));
}

function showVerdict({ safe, healthy }) {
  const good = safe.ok && healthy.ok;
  at("verdict").className = good ? "good" : "bad";
  at("answer").textContent = good ? "Safe and landing" : "Look here";
  at("why").textContent = safe.why;
  document.title = `${good ? "●" : "▲"} msgproto`;
}

function showQueue(queue, now) {
  if (!queue) {
    pairs(at("queue"), [["queue", "none"]]);
    table(at("consumers"), [], [], "no consumer");
    return;
  }
  pairs(at("queue"), [
    ["messages kept", number(queue.end_offset - queue.begin_offset)],
    ["oldest", since(now, queue.oldest)],
    ["not durable yet", number(queue.waiting_messages)],
    ["on disk", `${bytes(queue.stored_bytes)} of ${bytes(queue.max_bytes)}`],
    ["left on the disk", bytes(queue.disk_free_bytes)],
    ["last commit", `${(queue.append_last_us / 1000).toFixed(1)} ms`],
    ["damaged messages", number(queue.damaged_messages)],
    ["directory", queue.directory],
    ...(queue.unheld ?? []).map((one) => ["no gateway holds",
      `${one.directory}, ${number(one.behind_messages)} behind: msgproto queue mend ${one.directory}`]),
  ]);
  table(at("consumers"), ["consumer", "committed", "behind", "stands still"],
    queue.consumers.map((one) => [one.table ? `${one.table} (${one.name})` : one.name,
      one.offset, one.behind_messages, stillText(one)]), "no consumer");
}

function stillText(one) {
  if (one.rests_seconds) return `resting, next run within ${duration(one.rests_seconds)}`;
  return one.still_seconds ? duration(one.still_seconds) : "no";
}

function showMemory(memory) {
  pairs(at("memory"), [
    ["not safe yet", `${bytes(memory.waiting_bytes)} of ${bytes(memory.waiting_limit_bytes)}`],
    ["waiting connections", number(memory.waiting_connections)],
    ["unfinished, unread", `${bytes(memory.held_bytes)} of ${bytes(memory.held_limit_bytes)}`],
    ["kept for sessions", `${bytes(memory.kept_bytes)} of ${bytes(memory.kept_limit_bytes)}`],
  ]);
}

function choose(protocol, state) {
  const same = chosen.protocol === protocol && chosen.state === state;
  chosen = same ? { protocol: "", state: "" } : { protocol, state };
  showMachines();
  showSessions();
}

function showMachines() {
  const shown = Object.entries(machines).filter(([name]) => last.protocols[name]);
  const focused = document.activeElement?.getAttribute("data-state");
  at("machines").replaceChildren(...shown.map(([name, drawing]) =>
    machineOf(name, drawing, last.protocols[name].states, chosen, choose)));
  if (focused) at("machines").querySelector(`[data-state="${CSS.escape(focused)}"]`)?.focus();
}

const SESSION = ["protocol", "state", "peer", "client", "session", "window", "holds", "more"];
const HELD = ["unsafe_bytes", "held_bytes"];

function rest(session) {
  const known = ["protocol", "state", "peer", "client_id", "session", "window", ...HELD];
  return Object.entries(session)
    .filter(([name, value]) => !known.includes(name) && value !== null && value !== 0 && value !== false)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
}

function cellsOf(one) {
  const holds = HELD.reduce((sum, name) => sum + (Number(one[name]) || 0), 0);
  return [String(one.protocol), String(one.state), String(one.peer ?? ""), String(one.client_id ?? ""),
    String(one.session ?? ""), one.window ?? "", holds, rest(one)];
}

function compared(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

// A sample has no sessions.  Those that the table shows are asked for when the filter or, without
// one, their number changes, and else now and then while somebody may look.
function followSessions() {
  if (document.hidden) return;
  const plain = !at("filter").value && !chosen.protocol;
  const changed = plain && shownTotal !== last.sessions_total;
  if (changed || performance.now() - asked >= SESSIONS_MS) showSessions();
}

async function showSessions() {
  const text = at("filter").value;
  const { protocol, state } = chosen;
  at("chosen").hidden = !protocol;
  at("chosen").textContent = `${protocol} ${state} ×`;
  search += 1;
  const mine = search;
  asked = performance.now();
  shownTotal = last.sessions_total;
  const query = new URLSearchParams({ protocol, state, text });
  let answer;
  try {
    answer = await (await fetch(`sessions.json?${query}`)).json();
  } catch {
    asked = -Infinity; // the next sample asks again
    return;
  }
  if (mine === search) fillSessions(answer);
}

function fillSessions({ sessions, found, sessions_total: total }) {
  const rows = sessions.map(cellsOf);
  const place = SESSION.indexOf(sorting.column);
  rows.sort((one, other) => compared(one[place], other[place]));
  if (sorting.down) rows.reverse();
  for (const cells of rows) cells[6] = cells[6] ? bytes(cells[6]) : "";
  table(at("sessions"), SESSION, rows, "no session", (column) => {
    sorting = { column, down: sorting.column === column && !sorting.down };
    fillSessions({ sessions, found, sessions_total: total });
  });
  at("shown").textContent = `${number(rows.length)} shown of ${number(found)}`
    + (found === total ? "" : ` that match, ${number(total)} in all`);
}

function errorsOf(bridge) {
  const entries = Object.entries(bridge.errors ?? {});
  const text = entries.map(([column, rows]) => `${column} ${number(rows)}`).join(", ");
  return entries.length ? [["rows in error", text]] : [];
}

function showBridges(bridges) {
  const shown = (bridges ?? []).map((one) => {
    const part = made("div", undefined, "bridge");
    const good = ["running", "starting", "resting"].includes(one.state) && !one.error && !one.away.length;
    const head = made("h3", undefined, good ? "good" : "bad");
    head.append(made("span", undefined, "lamp"), made("span", `${one.table ?? one.consumer}: ${one.state}${one.away.length ? `, ${one.away.length} away` : ""}`));
    const batch = one.last_batch;
    const list = made("dl");
    pairs(list, [
      ["last batch", batch ? `${number(batch.batch)}: ${number(batch.rows)} rows in ${Number(batch.seconds).toFixed(2)} s` : "none yet"],
      ["landing", `${rateText(one.rows_per_second ?? 0)} rows/s`],
      ["behind", one.lag_rows === null ? "–" : `${number(one.lag_rows)} rows, oldest ${duration(one.oldest_age_seconds ?? 0)}`],
      ["landed since its start", `${number(one.rows)} rows in ${number(one.batches)} batches`],
      ...(one.rejected_rows ? [["dead letters", `${number(one.rejected_rows)} rows`]] : []),
      ...errorsOf(one),
      ["gateways", number(one.gateways)],
      ["heard", one.heard_seconds === null ? "never" : `${duration(one.heard_seconds)} ago`],
      ["next run", one.rests_seconds ? `within ${duration(one.rests_seconds)}` : "–"],
      ["consumer", one.consumer ?? "–"],
    ]);
    part.append(head, list);
    if (one.error) part.append(made("p", one.error, "error"));
    const rows = [
      ...one.away.map((away) => [away.location ?? away.queue ?? "", away.state ?? "", "–", away.error ?? ""]),
      ...one.known.map((known) => [`${(known.queue ?? "").slice(0, 8)}…`, "lands", number(known.lag_rows), duration(known.oldest_age_seconds ?? 0)]),
    ];
    if (rows.length > 1 || one.away.length) {
      const wide = made("div", undefined, "wide");
      const gateways = made("table");
      table(gateways, ["gateway", "state", "behind", "oldest, or why"], rows, "");
      wide.append(gateways);
      part.append(wide);
    }
    return part;
  });
  at("bridges").replaceChildren(...(shown.length ? shown : [made("p", "No bridge has read this queue.", "none")]));
}

function showBroker(broker, now) {
  at("spaces").textContent = Object.entries(broker.spaces).map(([name, one]) =>
    `${name}: ${number(one.queues)} ${one.queues === 1 ? "queue" : "queues"}, ${number(one.waiting_messages)} waiting, `
    + `${number(one.in_flight_messages)} with consumers, ${bytes(one.bytes)}`).join(" · ");
  table(at("broker"), ["space", "queue", "waiting", "in flight", "bytes", "consumers", "oldest"],
    broker.queues.map((one) => [one.space, one.name, one.waiting, one.in_flight, one.bytes,
      one.consumers, since(now, one.oldest)]), "no queue");
}

function showFaults({ protocols, offenders, limits }) {
  const faults = [], met = [];
  for (const [name, one] of Object.entries(protocols)) {
    for (const [reason, count] of Object.entries(one.faults)) faults.push([name, reason, count]);
    const failed = one.counters.failed_authentications;
    if (failed) faults.push([name, "failed log-in", failed]);
    for (const [limit, count] of Object.entries(one.limits_met)) {
      const known = limits[name]?.[limit];
      met.push([name, `--limit ${limit}=${known ? known.value : "NUMBER"}`, known?.unit ?? "", count]);
    }
  }
  faults.sort((one, other) => other[2] - one[2]);
  table(at("faults"), ["protocol", "reason", "times"], faults, "none since the start");
  table(at("limits"), ["protocol", "option", "unit", "times"], met, "none since the start");
  table(at("offenders"), ["address", "protocol", "reason", "last", "times"],
    offenders.worst.map((one) => [one.address, one.protocol, one.reason,
      `${duration(one.seconds_ago)} ago`, one.times]), "none since the start");
}

function show(figures) {
  last = figures;
  remember(figures.flow);
  showVerdict(figures);
  showFlow(figures.protocols);
  showQueue(figures.queue, figures.at);
  showBridges(figures.queue?.bridges);
  showMemory(figures.memory);
  showMachines();
  followSessions();
  showBroker(figures.broker, figures.at);
  showFaults(figures);
  const { version, pid, uptime_seconds: uptime } = figures.gateway;
  at("about").textContent = `twisted_msgproto ${version}, process ${pid}, up ${duration(uptime)}`;
}

at("filter").oninput = () => { if (last) showSessions(); };
at("chosen").onclick = () => choose(chosen.protocol, chosen.state);
fetch("machines.json").then((answer) => answer.json()).then((drawings) => {
  machines = drawings;
  if (last) showMachines();
});

document.addEventListener("visibilitychange", () => { if (last) followSessions(); });

const source = new EventSource("events");
source.onmessage = (event) => {
  heard = Date.now();
  at("stale").hidden = true;
  show(JSON.parse(event.data));
};
setInterval(() => { at("stale").hidden = heard === 0 || Date.now() - heard < STALE_MS; }, 1000);
source.onerror = () => { at("stale").hidden = false; };
