// The page: one client, a method, two topics, an attribute, and attachments in both directions.

import { UmqClient } from "./twisted-msgproto/umq/index.js";

const READINGS = 60;
const DRAWINGS = 12;

const url = new URLSearchParams(location.search).get("umq") ?? "ws://localhost:5048/";
const element = (id) => document.getElementById(id);

const client = new UmqClient(url, {
  onState(state, error) {
    element("state").textContent = error && ["down", "closed"].includes(state) ? `${state}: ${error.message}` : state;
    element("state").className = `pill ${state}`;
    element("send").disabled = state !== "open";
  },
  onAttribute(name, attribute) {
    if (name !== "visitors") return;
    element("visitors").hidden = attribute === null;
    element("visitors").textContent = attribute?.value === "1" ? "1 page is open" : `${attribute?.value} pages are open`;
  },
  limits: { "retry-most": 5 },
});

// A method of the server.
async function greet() {
  const began = performance.now();
  try {
    element("greeting").textContent = await client.remote.greet(element("name").value);
    element("took").textContent = `answered in ${(performance.now() - began).toFixed(1)} ms`;
  } catch (error) {
    element("greeting").textContent = `Failed: ${error.message}`;
    element("took").textContent = "";
  }
}

element("form").onsubmit = (event) => {
  event.preventDefault();
  greet();
};

// A topic: each update is JSON.
const readings = [];

function showReading({ payload }) {
  const { number, value } = JSON.parse(payload);
  readings.push(value);
  if (readings.length > READINGS) readings.shift();
  const item = document.createElement("li");
  item.textContent = `tick ${number}: ${value.toFixed(1)}`;
  element("ticks").prepend(item);
  while (element("ticks").children.length > 5) element("ticks").lastChild.remove();
  drawChart();
}

function drawChart() {
  const low = Math.min(...readings) - 1;
  const high = Math.max(...readings) + 1;
  const x = (at) => (600 * at) / Math.max(1, readings.length - 1);
  const y = (value) => 160 - (160 * (value - low)) / (high - low);
  const line = readings.map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  element("line").setAttribute("d", line);
  element("area").setAttribute("d", `${line}L${x(readings.length - 1)} 160L0 160Z`);
}

// Attachments: a drawing goes to the server as a PNG, and from there to every page.
const canvas = element("canvas");
const pen = canvas.getContext("2d");
Object.assign(pen, { lineWidth: 5, lineCap: "round", lineJoin: "round", strokeStyle: "#3456d1" });

function place({ clientX, clientY }) {
  const box = canvas.getBoundingClientRect();
  return [((clientX - box.left) * canvas.width) / box.width, ((clientY - box.top) * canvas.height) / box.height];
}

canvas.onpointerdown = (event) => {
  canvas.setPointerCapture(event.pointerId);
  pen.beginPath();
  pen.moveTo(...place(event));
};

canvas.onpointermove = (event) => {
  if (!event.buttons) return;
  pen.lineTo(...place(event));
  pen.stroke();
};

element("clear").onclick = () => pen.clearRect(0, 0, canvas.width, canvas.height);

element("send").onclick = async () => {
  const picture = new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  try {
    await client.callMethod("draw", [], { attachments: [picture] });
    element("clear").onclick();
  } catch (error) {
    element("empty").hidden = false;
    element("empty").textContent = `Not sent: ${error.message}`;
  }
};

function showDrawing({ attachments: [picture] }) {
  if (!(picture instanceof Uint8Array)) return; // its sender has lost it
  const image = new Image();
  image.alt = "A drawing that a page has sent";
  image.src = URL.createObjectURL(new Blob([picture], { type: "image/png" }));
  image.onload = () => URL.revokeObjectURL(image.src);
  element("wall").prepend(image);
  while (element("wall").children.length > DRAWINGS) element("wall").lastChild.remove();
  element("empty").hidden = true;
}

client.start();
greet();
client.subscribe((id) => JSON.stringify(["readings", id]), showReading);
client.subscribe((id) => JSON.stringify(["drawings", id]), showDrawing);
