"use strict";
// What the page draws: the flow of each protocol, and the machines of its sessions.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 6;
const SAMPLES = 180; // fifteen minutes of one every five seconds

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// ── flow ─────────────────────────────────────────────────────────────────────────────────────────

// The path through values, newest at the right; null makes a gap.
function pathOf(values, most, high) {
  const first = SAMPLES - values.length;
  let text = "", down = false;
  values.forEach((value, place) => {
    if (value === null) { down = false; return; }
    const y = (high - 2 - (high - 6) * Math.min(1, value / most)).toFixed(1);
    // A sample alone between gaps is a dot.
    text += down ? `L${first + place},${y} ` : `M${first + place},${y} h.01 `;
    down = true;
  });
  return text;
}

// Each run of values without a gap is closed down to the ground.
function areaOf(values, most, high) {
  const first = SAMPLES - values.length;
  return values.length < 2 ? "" : `M${first},${high - 2} ${pathOf(values, most, high).replace("M", "L").replace("h.01 ", "")}`
    + `L${SAMPLES - 1},${high - 2} Z`;
}

function chart(label, high, paths) {
  const svg = element("svg", {
    viewBox: `0 0 ${SAMPLES - 1} ${high}`, preserveAspectRatio: "none", role: "img",
    "aria-label": label, class: "chart", height: high,
  });
  for (const third of [1, 2]) {
    const x = third * (SAMPLES / 3);
    svg.append(element("path", { class: "tick", d: `M${x},0 V${high}` }));
  }
  svg.append(element("path", { class: "ground", d: `M0,${high - 2} H${SAMPLES - 1}` }));
  for (const [kind, d] of paths) if (d) svg.append(element("path", { class: kind, d }));
  return svg;
}

function rateText(value) {
  return value >= 10 || value === 0 ? number(Math.round(value)) : number(Number(value.toFixed(1)));
}

function latencyText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

function figureOf(name, values, place) {
  const colour = `k${place % COLOURS}`;
  const rates = values.messages_per_second.map((value) => value ?? 0);
  const byteRates = values.bytes_per_second.map((value) => value ?? 0);
  const [p50, p99] = [values.ack_p50_seconds, values.ack_p99_seconds];
  const most = Math.max(1, ...rates);
  const slowest = Math.max(0.001, ...p99.map((value) => value ?? 0));
  const figure = made("figure");
  const caption = made("figcaption");
  caption.append(made("b", name), made("span", `${bytes(byteRates.at(-1) ?? 0)}/s`));
  const rate = made("div", undefined, "legend");
  rate.append(made("span", `${rateText(rates.at(-1) ?? 0)} messages/s`, colour),
    made("small", rates.some((value) => value) ? `up to ${rateText(most)}` : ""));
  const lines = made("div", undefined, "legend");
  const known = p99.filter((value) => value !== null);
  lines.append(made("span", "ack"),
    made("span", `p50 ${latencyText(p50.findLast((value) => value !== null))}`, "p50"),
    made("span", `p99 ${latencyText(known.at(-1))}`, "p99"));
  const axis = made("div", undefined, "axis");
  axis.append(made("span", "15 min ago"),
    made("span", known.length ? `p99 up to ${latencyText(slowest)}` : ""), made("span", "now"));
  figure.append(
    caption,
    rate,
    chart(`${name}: messages per second`, 64,
      [[`area ${colour}`, areaOf(rates, most, 64)], [`line ${colour}`, pathOf(rates, most, 64)]]),
    lines,
    chart(`${name}: seconds until acknowledged, p50 and p99`, 40,
      [["line p99", pathOf(p99, slowest, 40)], ["line p50", pathOf(p50, slowest, 40)]]),
    axis,
  );
  return figure;
}

// ── machines ─────────────────────────────────────────────────────────────────────────────────────

const BOX_HIGH = 52;
const LETTER = 6.5;
const GAP = 22;
const ARC = 13; // an arc over one more state is so much higher

function words(state) {
  return state.toLowerCase().split("_");
}

// States stand in one row; arcs above lead on, arcs below lead back.
function machineOf(protocol, drawing, counts, chosen, choose) {
  const wide = drawing.states.map((state) =>
    Math.max(56, 9 * number(counts[state] ?? 0).length + 14, LETTER * Math.max(...words(state).map((word) => word.length)) + 14));
  const left = [];
  let x = 1;
  for (const one of wide) { left.push(x); x += one + GAP; }
  const spans = drawing.moves.map(({ from, to }) =>
    drawing.states.indexOf(to) - drawing.states.indexOf(from));
  const above = Math.max(0, ...spans.filter((span) => span > 1));
  const below = Math.max(0, ...spans.filter((span) => span < 0).map((span) => -span));
  const top = above ? 12 + ARC * above : 4;
  const high = top + BOX_HIGH + (below ? 12 + ARC * below : 4);
  const svg = element("svg", {
    viewBox: `0 0 ${x - GAP + 1} ${high}`, width: x - GAP + 1, height: high, class: "machine",
    role: "group", "aria-label": `${protocol}: sessions by state`,
  });
  drawing.moves.forEach((move, place) => {
    const [from, to] = [drawing.states.indexOf(move.from), drawing.states.indexOf(move.to)];
    svg.append(arcOf(from, to, spans[place], left, wide, top, move));
  });
  drawing.states.forEach((state, place) => {
    svg.append(stateOf(protocol, state, counts[state] ?? 0, left[place], top, wide[place],
      chosen.protocol === protocol && chosen.state === state, choose));
  });
  const figure = made("figure");
  figure.append(made("figcaption", protocol), svg);
  return figure;
}

function arcOf(from, to, span, left, wide, top, move) {
  const middle = (place) => left[place] + wide[place] / 2;
  let d, tip;
  if (span === 1) {
    const y = top + BOX_HIGH / 2;
    d = `M${left[from] + wide[from]},${y} H${left[to] - 5}`;
    tip = `M${left[to]},${y} l-7,-4 v8 Z`;
  } else {
    const on = span > 1;
    const y = on ? top : top + BOX_HIGH;
    const far = on ? top - 12 - ARC * span * 1.2 : y + 12 - ARC * span * 1.2;
    // Several arcs end at one state: each a little further out.
    const start = middle(from) + (on ? 9 : -9);
    const end = middle(to) - (on ? 1 : -1) * (3 + 4 * (Math.abs(span) - 1));
    const rim = on ? y - 6 : y + 6;
    d = `M${start},${y} C${start},${far} ${end},${far} ${end},${rim}`;
    tip = on ? `M${end},${y} l-4,-7 h8 Z` : `M${end},${y} l-4,7 h8 Z`;
  }
  const group = element("g", { class: "move" });
  group.append(element("title", {}, `${move.from} → ${move.to}: ${move.events.join(", ")}`),
    element("path", { class: "arc", d }), element("path", { class: "tip", d: tip }));
  return group;
}

function stateOf(protocol, state, count, x, y, wide, chosen, choose) {
  const group = element("g", {
    class: `state${count ? " some" : ""}${chosen ? " chosen" : ""}`, role: "button", tabindex: "0",
    "aria-pressed": String(chosen), "aria-label": `${protocol} ${state}: ${count} sessions`,
    "data-state": `${protocol} ${state}`,
  });
  group.append(element("rect", { x, y, width: wide, height: BOX_HIGH, rx: 7 }));
  const middle = x + wide / 2;
  group.append(element("text", { x: middle, y: y + 18, class: "count" }, number(count)));
  const lines = words(state);
  lines.forEach((word, line) => group.append(element("text", {
    x: middle, y: y + (lines.length > 1 ? 32 : 38) + 12 * line, class: "name",
  }, word)));
  const act = () => choose(protocol, state);
  group.addEventListener("click", act);
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
  });
  return group;
}
