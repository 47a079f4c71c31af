// The panel of one item: its figures, its job, and what one other value would change.
import { amount } from "/ui/static/pareto.js";

const COSTS = [["latency_s", "Latency"], ["energy_pj", "Energy"], ["on_chip_bytes", "On chip"]];
const EXPLORED = [["area_mm2", "Area"], ["off_chip_bytes_per_s", "Off-chip bandwidth"]];

function node(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const comparison = (sweep, base, head) => `/ui/compare?base=${sweep.id}:${base}&head=${sweep.id}:${head}`;

// Items of the same model that differ in one field alone; of one field the base, too, as it is.
function neighbours(item, items, fields) {
  const found = [];
  for (const other of items) {
    if (other.id === item.id || other.model !== item.model || other.state !== "succeeded") continue;
    if (item.values.length && other.values.length) {
      const differs = fields.flatMap((_, k) => (other.values[k] === item.values[k] ? [] : [k]));
      if (differs.length === 1) found.push([fields[differs[0]], item.values[differs[0]], other.values[differs[0]], other]);
    } else if (fields.length === 1 && item.hardware_name === other.hardware_name) {
      found.push([fields[0], item.values[0] ?? "as it is", other.values[0] ?? "as it is", other]);
    }
  }
  return found.sort((a, b) => fields.indexOf(a[0]) - fields.indexOf(b[0]) || (a[2] > b[2] ? 1 : -1));
}

function change(item, other, cost) {
  if (item[cost] === null || other[cost] === null) return "–";
  const percent = 100 * (other[cost] / item[cost] - 1);
  return `${amount(cost, other[cost])} (${percent > 0 ? "+" : ""}${percent.toFixed(1)} %)`;
}

function whatIf(item, found, sweep) {
  const wide = node("div", null, { class: "wide", tabindex: "0", role: "region", "aria-label": "One field changed" });
  const table = wide.appendChild(node("table", null, { class: "list", id: "what-if" }));
  const head = table.createTHead().insertRow();
  for (const name of ["Field", "Here", "There", ...COSTS.map(([, title]) => title), "What differs"]) head.append(node("th", name, { scope: "col" }));
  const body = table.createTBody();
  for (const [field, here, there, other] of found) {
    const row = body.insertRow();
    const first = row.appendChild(node("th", null, { scope: "row" }));
    first.append(node("code", field));
    row.append(node("td", here.toLocaleString("en"), { class: "n" }), node("td", there.toLocaleString("en"), { class: "n" }));
    for (const [cost] of COSTS) row.append(node("td", change(item, other, cost), { class: "n" }));
    const last = row.appendChild(node("td", null));
    last.append(node("a", `compare with item ${other.id}`, { href: comparison(sweep, item.id, other.id) }));
  }
  return wide;
}

export function itemPanel(item, items, sweep, { renew }) {
  const panel = node("article", null, { class: "panel item", "data-item": item.id, "aria-labelledby": "item-title" });
  const head = panel.appendChild(node("div", null, { class: "head" }));
  const kind = item.is_guess ? "Estimate" : item.part ? "Part" : "Item";
  head.append(node("h2", `${kind} ${item.called}: ${item.model_name ?? item.model} on ${item.hardware_name}`, { id: "item-title", tabindex: "-1" }));
  head.append(node("button", "✕", { class: "quiet close", "aria-label": "Close this item" }));
  const figures = panel.appendChild(node("dl", null, { class: "headline small" }));
  const told = [
    ["State", item.state],
    ...COSTS.map(([cost, title]) => [title, amount(cost, item[cost]) ?? "–"]),
    ...(item.estimate ? [["Latency, estimated", amount("latency_s", item.estimate.latency_s)], ["Energy, estimated", amount("energy_pj", item.estimate.energy_pj)]] : []),
    ...EXPLORED.filter(([cost]) => (item.area_mm2 ?? null) !== null && item[cost] !== null).map(([cost, title]) => [title, amount(cost, item[cost])]),
    ...(item.part ? [["Machines", `${item.part.count}, from number ${item.part.first} on`]] : []),
    ...item.values.map((value, k) => [sweep.fields[k], value.toLocaleString("en")]),
  ];
  for (const [name, value] of told) {
    const box = figures.appendChild(node("div", null));
    box.append(node("dt", name), node("dd", value));
  }
  if (item.why) panel.append(node("p", item.why, { class: "alert" }));
  const asks = panel.appendChild(node("p", null, { class: "asks" }));
  if (item.job) asks.append(node("a", "Job", { class: "button", href: `/ui/jobs/${item.job}` }));
  if (item.hardware) asks.append(node("a", "Machine", { class: "button", href: `/ui/hardware/${item.hardware}` }));
  if (item.state !== "succeeded") return panel;
  if (sweep.base !== null && sweep.base !== item.id) {
    asks.append(node("a", `Compare with item ${sweep.base}`, { class: "button", href: comparison(sweep, sweep.base, item.id) }));
  }
  const keep = asks.appendChild(node("button", sweep.base === item.id ? "Others are compared with this" : "Compare others with this", { type: "button" }));
  keep.addEventListener("click", () => { sweep.base = item.id; renew(); });
  const found = neighbours(item, items, sweep.fields);
  if (found.length) panel.append(node("h3", "What if one field had another value"), whatIf(item, found, sweep));
  return panel;
}
