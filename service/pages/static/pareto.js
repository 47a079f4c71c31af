// Items by latency and one cost, the front drawn through; keys go from point to point.
import { si } from "/ui/static/grid.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 760, HEIGHT = 300, LEFT = 74, RIGHT = 16, TOP = 14, BOTTOM = 40, TICKS = 5;

export function amount(cost, value) {
  if (value === null || value === undefined) return null;
  if (cost === "latency_s") return si(value, "s");
  if (cost === "energy_pj") return si(value * 1e-12, "J");
  if (cost === "area_mm2") return `${Number(value.toPrecision(4))} mm²`;
  if (cost === "off_chip_bytes_per_s") return si(value, "B/s");
  for (const [scale, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(4))} ${unit}`;
  }
  return `${value} B`;
}

function made(name, attributes, parent) {
  const node = parent.appendChild(document.createElementNS(SVG, name));
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// The least and the most, some room around them, and where lines are drawn.
function axis(values, isBinary) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const room = (high - low || high || 1) * 0.08;
  const from = Math.max(low - room, 0), to = high + room, wanted = (to - from) / TICKS;
  const decade = 10 ** Math.floor(Math.log10(wanted));
  const round = [1, 2, 5, 10].map((k) => k * decade).find((size) => size >= wanted);
  const step = isBinary ? 2 ** Math.ceil(Math.log2(wanted)) : round;
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
  return { from, to, ticks };
}

const tenth = (value) => Math.round(value * 10) / 10;
const RADIUS = 4;
const ring = ({ x, y }) => `M${tenth(x - RADIUS)} ${y}a${RADIUS} ${RADIUS} 0 1 0 ${2 * RADIUS} 0a${RADIUS} ${RADIUS} 0 1 0 ${-2 * RADIUS} 0`;

export class Pareto {
  constructor(holder, says, name) {
    Object.assign(this, { holder, says, name });
    this.onchoose = () => {};
    this.points = [];
    this.crowd = [];
    this.at = null;
    this.chosen = null;
    holder.addEventListener("click", (event) => {
      const point = event.target.closest("[data-item]");
      if (point) this.onchoose(Number(point.dataset.item));
      else if (event.target.closest(".crowd")) this.onchoose(this.nearest(event).id);
    });
    holder.addEventListener("keydown", (event) => this.key(event));
  }

  // Items with `id`, `latency_s`, the cost, and `is_on_front`; those that are only estimated are
  // `is_guess`, and others may have an `estimate`.
  set(items, cost) {
    this.cost = cost;
    this.points = items.filter((item) => item.latency_s !== null && item[cost] !== null);
    this.points.sort((a, b) => a.latency_s - b.latency_s || a[cost] - b[cost] || a.id - b.id);
    this.draw();
  }

  select(id) {
    this.chosen = id;
    this.draw();
  }

  draw() {
    if (!this.points.length) return;
    const { cost, points } = this;
    const across = axis(points.map((item) => item.latency_s)), up = axis(points.map((item) => item[cost]), cost === "on_chip_bytes");
    const x = (item) => LEFT + ((item.latency_s - across.from) / (across.to - across.from)) * (WIDTH - LEFT - RIGHT);
    const y = (item) => HEIGHT - BOTTOM - ((item[cost] - up.from) / (up.to - up.from)) * (HEIGHT - TOP - BOTTOM);
    const drawing = document.createElementNS(SVG, "svg");
    drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    drawing.setAttribute("aria-hidden", "true");
    for (const tick of across.ticks) {
      const left = x({ latency_s: tick });
      made("line", { class: "grid", x1: left, x2: left, y1: TOP, y2: HEIGHT - BOTTOM }, drawing);
      made("text", { x: left, y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, drawing).textContent = amount("latency_s", tick);
    }
    for (const tick of up.ticks) {
      const top = y({ [cost]: tick });
      made("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: top, y2: top }, drawing);
      made("text", { x: LEFT - 6, y: top + 4, "text-anchor": "end" }, drawing).textContent = amount(cost, tick);
    }
    made("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, drawing).textContent = "latency";
    // On the front of three costs what is best in these two need not be a line that falls.
    const best = points.filter((item) => item.is_on_front), line = best.some((item) => item.is_guess) ? best.filter((item) => item.is_guess) : best;
    made("polyline", { class: "front", points: line.map((item) => `${x(item)},${y(item)}`).join(" ") }, drawing);
    // Thousands of estimates are one shape: an element each would take longer than a page may be held up.
    const isOne = (item) => !item.is_guess || item.is_on_front || item.id === this.chosen || item.id === this.at;
    this.crowd = points.filter((item) => !isOne(item)).map((item) => ({ id: item.id, x: tenth(x(item)), y: tenth(y(item)) }));
    if (this.crowd.length) made("path", { class: "point guess crowd", d: this.crowd.map(ring).join("") }, drawing);
    const each = points.filter(isOne).sort((a, b) => Boolean(b.is_guess) - Boolean(a.is_guess) || Boolean(a.is_on_front) - Boolean(b.is_on_front));
    for (const item of each) {
      const kinds = ["point", item.is_guess && "guess", item.estimate && "winner", item.is_on_front && "best", item.id === this.chosen && "picked", item.id === this.at && "at"];
      const about = { class: kinds.filter(Boolean).join(" "), "data-item": item.id };
      if (!item.estimate) {
        made("circle", { ...about, cx: x(item), cy: y(item), r: item.is_on_front ? 5.5 : RADIUS }, drawing);
        continue;
      }
      made("line", { class: "off", x1: x(item.estimate), y1: y(item.estimate), x2: x(item), y2: y(item) }, drawing);
      made("rect", { ...about, x: x(item) - 5, y: y(item) - 5, width: 10, height: 10 }, drawing);
    }
    this.holder.replaceChildren(drawing);
  }

  // Of the crowd, where the pointer is.
  nearest(event) {
    const box = this.holder.querySelector("svg").getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH, y = ((event.clientY - box.top) / box.height) * HEIGHT;
    const far = (one) => (one.x - x) ** 2 + (one.y - y) ** 2;
    return this.crowd.reduce((best, one) => (far(one) < far(best) ? one : best));
  }

  key(event) {
    if (!this.points.length) return;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, Home: -1e9, End: 1e9 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      const isFront = event.key === "ArrowUp" || event.key === "ArrowDown";
      const among = isFront ? this.points.filter((item) => item.is_on_front) : this.points;
      if (!among.length) return;
      const here = this.points.find((item) => item.id === (this.at ?? this.chosen));
      let place = here ? among.indexOf(here) : -1;
      if (place < 0 && here) place = among.findLastIndex((item) => item.latency_s <= here.latency_s) - (step < 0 ? -1 : 0);
      const item = among[Math.min(Math.max(place + step, 0), among.length - 1)];
      this.at = item.id;
      this.says.textContent = `${this.name(item)}: ${amount("latency_s", item.latency_s)}, ${amount(this.cost, item[this.cost])}${item.is_guess ? ", estimated" : item.estimate ? ", simulated" : ""}${item.is_on_front ? ", on the front" : ""}`;
      this.draw();
    } else if (event.key === "Enter" && this.at !== null) {
      event.preventDefault();
      this.onchoose(this.at);
    }
  }
}
