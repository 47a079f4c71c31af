// The page of a sweep: its event stream fills the counts, the front, the table and one item's panel.
import { Grid } from "/ui/static/grid.js";
import { Pareto, amount } from "/ui/static/pareto.js";
import { itemPanel } from "/ui/static/sweep_item.js";
import { refusalOf, showRefusal } from "/ui/static/pieces.js";

const DRAW_MS = 250;
const page = document.getElementById("sweep"), place = document.getElementById("panel-place");
const sweep = { id: page.dataset.id, fields: JSON.parse(page.dataset.fields), base: null };
const items = new Map();
const PLACES = 1000; // an estimate's id: after all items, by its part and its place in it
const guessId = (number, place) => 1e6 + number * PLACES + place;
let front = new Set(), pending = 0, chosen = null;

// The last names of a pointer say enough.
const short = (field) => field.split(/[/.]/).slice(-2).join(".");
const named = (item) => [item.model_name ?? item.model, item.hardware_name, ...item.values].join(" ");

const columns = [
  { key: "id", name: "#", width: 48, number: true, show: (item) => item.called },
  { key: "model_name", name: "Model", width: 130 },
  { key: "hardware_name", name: "Machine", width: 130, is_name: true },
  ...sweep.fields.map((name, k) => ({ key: `value-${k}`, name: short(name), width: 160, number: true, show: (item) => item.values[k]?.toLocaleString("en") })),
  { key: "state", name: "State", width: 90 },
  { key: "latency_s", name: "Latency", width: 90, number: true, show: (item) => amount("latency_s", item.latency_s) },
  { key: "energy_pj", name: "Energy", width: 90, number: true, show: (item) => amount("energy_pj", item.energy_pj) },
  { key: "on_chip_bytes", name: "On chip", width: 90, number: true, show: (item) => amount("on_chip_bytes", item.on_chip_bytes) },
  { key: "is_on_front", name: "Front", width: 64, show: (item) => (item.is_on_front ? "front" : "") },
  { key: "seconds", name: "Took", width: 74, number: true, show: (item) => item.seconds && `${item.seconds.toPrecision(2)} s` },
  { key: "why", name: "Why not", width: 190, title: (item) => item.why },
];

const grid = new Grid(document.getElementById("items"), {
  columns, name: "Items", filter: document.getElementById("filter"), counted: document.getElementById("counted"),
});
const pareto = new Pareto(document.getElementById("pareto"), document.getElementById("pointed"), named);
const models = document.getElementById("model"), cost = document.getElementById("cost");

function draw() {
  pending = 0;
  const rows = [...items.values()].sort((a, b) => a.id - b.id);
  for (const item of rows) {
    item.is_on_front = front.has(item.id);
    item.text = `${item.model_name} ${item.hardware_name} ${item.values.join(" ")} ${item.state} ${item.is_on_front ? "front" : ""} ${item.why}`.toLowerCase();
  }
  grid.set(rows);
  const known = new Map(rows.map((item) => [item.model, item.model_name ?? item.model]));
  if (known.size !== models.options.length) {
    const before = models.value;
    models.replaceChildren(...[...known].map(([id, name]) => new Option(name, id, false, id === before)));
    models.parentElement.hidden = known.size < 2;
  }
  pareto.set(rows.filter((item) => item.model === models.value), cost.value);
  if (chosen !== null && items.has(chosen)) fill();
}

function fill() {
  const item = items.get(chosen);
  if (item === place.shown && item.state === place.state) return;
  place.shown = item;
  place.state = item.state;
  const keepsFocus = place.contains(document.activeElement);
  place.replaceChildren(itemPanel(item, [...items.values()], sweep, { choose, renew: () => { place.shown = null; fill(); } }));
  if (keepsFocus) place.querySelector("h2").focus({ preventScroll: true });
}

function choose(id, { from }) {
  chosen = id;
  grid.select(id, { reveal: from !== "table" });
  pareto.select(id);
  history.replaceState(null, "", `#item=${id}`);
  if (!items.has(id)) return;
  const item = items.get(id);
  if (item.model !== models.value) {
    models.value = item.model;
    draw();
  }
  fill();
  place.querySelector("h2").focus({ preventScroll: true });
  place.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function close() {
  chosen = null;
  place.shown = null;
  place.replaceChildren();
  grid.select(null, { reveal: false });
  pareto.select(null);
  history.replaceState(null, "", location.pathname + location.search);
}

// Of a part that has been estimated its machines are shown, not the part.
function take(part) {
  items.delete(part.number);
  for (const [place, guess] of part.estimates.entries()) {
    const values = Object.fromEntries(guess.values.map((value, k) => [`value-${k}`, value]));
    items.set(guessId(part.number, place), {
      ...part, ...guess, ...values, id: guessId(part.number, place), called: `${part.number}.${place}`, state: "estimated", is_guess: true,
      hardware: null, error: null, seconds: null, part: null, estimates: [], why: guess.why ?? "",
    });
  }
}

function spoken(seconds) {
  if (seconds < 90) return `${Math.max(Math.round(seconds), 1)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function follow() {
  const events = new EventSource(`/v1/sweeps/${sweep.id}/events`);
  const later = () => { pending ||= setTimeout(draw, DRAW_MS); };
  events.addEventListener("item", (event) => {
    const told = JSON.parse(event.data);
    const values = Object.fromEntries(told.values.map((value, k) => [`value-${k}`, value]));
    const why = told.error ? `${told.error.detail} (${told.error.code})` : "";
    const { area_mm2, off_chip_bytes_per_s } = told.estimate ?? {}; // the machine's, however it is judged
    items.set(told.number, { area_mm2: area_mm2 ?? null, off_chip_bytes_per_s: off_chip_bytes_per_s ?? null, ...told, ...values, id: told.number, called: told.number, why });
    if (told.estimates.length) take(told);
    later();
  });
  events.addEventListener("progress", (event) => {
    const told = JSON.parse(event.data), { progress } = told;
    front = new Set([...told.front, ...told.estimated_front.map(([number, place]) => guessId(number, place))]);
    document.getElementById("progress").max = progress.total;
    document.getElementById("far").textContent = `${progress.total.toLocaleString("en")} items`;
    document.getElementById("progress").value = progress.succeeded + progress.failed + progress.canceled;
    const parts = [[progress.succeeded, "with results"], [progress.running, "running"], [progress.queued + progress.pending, "waiting"], [progress.failed, "failed"], [progress.canceled, "canceled"]];
    const counts = parts.filter(([count]) => count).map(([count, word]) => `${count} ${word}`);
    const guesses = [...items.values()].filter((item) => item.is_guess).length;
    if (page.dataset.explored === "1") counts.push(`${guesses.toLocaleString("en")} machines estimated`);
    if (told.eta_s !== null) counts.push(`about ${spoken(told.eta_s)} left`);
    document.getElementById("counts").textContent = `${counts.join(", ")}.`;
    document.getElementById("state").textContent = told.state;
    later();
  });
  events.addEventListener("end", () => {
    events.close();
    if (page.dataset.open === "1") location.reload();
  });
  events.addEventListener("error", async () => {
    if (events.readyState !== EventSource.CLOSED) return; // it asks again by itself
    const response = await fetch(`/v1/sweeps/${sweep.id}`);
    if (!response.ok) showRefusal(document.getElementById("link"), await refusalOf(response));
  });
}

grid.onchoose = (id) => choose(id, { from: "table" });
pareto.onchoose = (id) => choose(id, { from: "plot" });
for (const select of [models, cost]) select.addEventListener("change", draw);
document.addEventListener("click", (event) => { if (event.target.closest(".close")) close(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && place.firstChild) close(); });
const wanted = /^#item=(\d+)$/.exec(location.hash);
if (wanted) chosen = Number(wanted[1]);
follow();
