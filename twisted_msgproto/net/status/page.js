"use strict";
// The live page of a gateway.  What a peer has said is only ever written with textContent.

const SAMPLES_MAX = 450; // fifteen minutes of one every two seconds
const SAMPLES_LEAST = 60; // a drawing spans at least two minutes
const COLOURS = 6;
const STALE_MS = 10000;
const SVG = "http://www.w3.org/2000/svg";
// These counters of a protocol say how many messages came.
const MESSAGES = {
  lumberjack: ["events"],
  micromsg2: ["received"],
  sabc: ["requests", "send_only"],
  umq: ["calls"],
  mtl: ["contents"],
};

const at = (id) => document.getElementById(id);
const ring = [];
let sessions = [];
let sorting = { column: "protocol", down: false };
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

function octets(value) {
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

function messagesOf(protocol, figures) {
  const names = MESSAGES[protocol] ?? ["messages"];
  return names.reduce((sum, name) => sum + (figures.counters[name] ?? 0), 0);
}

function remember(figures) {
  const sample = { at: figures.at, counts: {} };
  for (const [name, one] of Object.entries(figures.protocols)) sample.counts[name] = messagesOf(name, one);
  if (figures.queue) sample.counts["made durable"] = figures.queue.messages;
  const last = ring.at(-1);
  if (last && last.at >= sample.at) return;
  ring.push(sample);
  if (ring.length > SAMPLES_MAX) ring.shift();
}

function ratesOf(name) {
  const rates = [];
  for (let place = 1; place < ring.length; place += 1) {
    const [before, after] = [ring[place - 1], ring[place]];
    const seconds = (after.at - before.at) / 1e6;
    const more = (after.counts[name] ?? 0) - (before.counts[name] ?? 0);
    rates.push(more < 0 ? 0 : more / seconds);
  }
  return rates;
}

function drawn(name, place) {
  const rates = ratesOf(name);
  const most = Math.max(1, ...rates);
  const figure = made("figure");
  const caption = made("figcaption");
  const now = rates.at(-1) ?? 0;
  const amount = now >= 10 || now === 0 ? Math.round(now) : Number(now.toFixed(1));
  caption.append(made("b", name), made("span", `${number(amount)} messages/s`));
  const svg = document.createElementNS(SVG, "svg");
  const wide = Math.max(SAMPLES_LEAST, rates.length);
  svg.setAttribute("viewBox", `0 0 ${wide - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${name}: messages per second`);
  const first = wide - rates.length;
  const points = rates.map((rate, x) => `${first + x},${(98 - 94 * rate / most).toFixed(1)}`);
  const path = (kind, text) => {
    const drawing = document.createElementNS(SVG, "path");
    drawing.setAttribute("class", `${kind} k${place % COLOURS}`);
    drawing.setAttribute("d", text);
    svg.append(drawing);
  };
  path("ground", `M0,98 H${wide - 1}`);
  if (points.length > 1) {
    path("area", `M${first},98 L${points.join(" L")} L${wide - 1},98 Z`);
    path("line", `M${points.join(" L")}`);
  }
  const foot = made("small", `at most ${number(Math.round(most))}/s while this page is open`);
  figure.append(caption, svg, foot);
  return figure;
}

function showFlow() {
  const names = Object.keys(ring.at(-1).counts);
  at("flow").replaceChildren(...names.map(drawn));
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
    ["on disk", `${octets(queue.stored_octets)} of ${octets(queue.max_octets)}`],
    ["left on the disk", octets(queue.disk_free_octets)],
    ["last commit", `${(queue.append_last_us / 1000).toFixed(1)} ms`],
    ["damaged messages", number(queue.damaged_messages)],
    ["directory", queue.directory],
  ]);
  table(at("consumers"), ["consumer", "committed", "behind", "stands still"],
    queue.consumers.map((one) => [one.name, one.offset, one.behind_messages,
      one.still_seconds ? duration(one.still_seconds) : "no"]), "no consumer");
}

function showMemory(memory) {
  pairs(at("memory"), [
    ["not safe yet", `${octets(memory.waiting_octets)} of ${octets(memory.waiting_limit_octets)}`],
    ["waiting connections", number(memory.waiting_connections)],
    ["unfinished, unread", `${octets(memory.held_octets)} of ${octets(memory.held_limit_octets)}`],
  ]);
}

function showStates(figures) {
  const texts = Object.entries(figures.protocols).map(([name, one]) => {
    const states = Object.entries(one.states).map(([state, count]) => `${number(count)} ${state}`);
    return `${name}: ${states.join(", ") || "none"}`;
  });
  at("states").textContent = texts.join(" · ");
}

function rest(session) {
  const known = ["protocol", "state", "peer", "client_id", "session"];
  return Object.entries(session).filter(([name, value]) => !known.includes(name) && value !== null)
    .map(([name, value]) => `${name} ${value}`).join(", ");
}

function showSessions(total) {
  const columns = ["protocol", "state", "peer", "client", "session", "holds"];
  const rows = sessions.map((one) => [one.protocol, one.state, one.peer ?? "", one.client_id ?? "",
    one.session ?? "", rest(one)].map(String));
  const wanted = at("filter").value.toLowerCase();
  const found = rows.filter((cells) => cells.some((cell) => cell.toLowerCase().includes(wanted)));
  const place = columns.indexOf(sorting.column);
  found.sort((one, other) => one[place].localeCompare(other[place], "en", { numeric: true }));
  if (sorting.down) found.reverse();
  table(at("sessions"), columns, found, "no session", (column) => {
    sorting = { column, down: sorting.column === column && !sorting.down };
    showSessions(total);
  });
  at("shown").textContent = `${number(found.length)} shown of ${number(total)}`;
  at("filter").oninput = () => showSessions(total);
}

function showBroker(broker, now) {
  at("spaces").textContent = Object.entries(broker.spaces).map(([name, one]) =>
    `${name}: ${number(one.queues)} ${one.queues === 1 ? "queue" : "queues"}, ${number(one.waiting_messages)} waiting, `
    + `${number(one.in_flight_messages)} with consumers, ${octets(one.octets)}`).join(" · ");
  table(at("broker"), ["space", "queue", "waiting", "in flight", "octets", "consumers", "oldest"],
    broker.queues.map((one) => [one.space, one.name, one.waiting, one.in_flight, one.octets,
      one.consumers, since(now, one.oldest)]), "no queue");
}

function showFaults(protocols) {
  const rows = [];
  for (const [name, one] of Object.entries(protocols)) {
    for (const [reason, count] of Object.entries(one.faults)) rows.push([name, "fault", reason, count]);
    for (const [limit, count] of Object.entries(one.limits_met)) {
      rows.push([name, "refused: limit", limit, count]);
    }
    const failed = one.counters.failed_authentications;
    if (failed) rows.push([name, "log-in", "failed", failed]);
  }
  table(at("faults"), ["protocol", "what", "reason", "times"], rows, "none since the start");
}

function show(figures) {
  remember(figures);
  showVerdict(figures);
  showFlow();
  showQueue(figures.queue, figures.at);
  showMemory(figures.memory);
  showStates(figures);
  sessions = figures.sessions;
  showSessions(figures.sessions_total);
  showBroker(figures.broker, figures.at);
  showFaults(figures.protocols);
  const { version, pid, uptime_seconds: uptime } = figures.gateway;
  at("about").textContent = `twisted_msgproto ${version}, process ${pid}, up ${duration(uptime)}`;
}

const source = new EventSource("events");
source.onmessage = (event) => {
  heard = Date.now();
  at("stale").hidden = true;
  show(JSON.parse(event.data));
};
setInterval(() => { at("stale").hidden = heard === 0 || Date.now() - heard < STALE_MS; }, 1000);
source.onerror = () => { at("stale").hidden = false; };
