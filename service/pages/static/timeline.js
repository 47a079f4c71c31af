// The timeline: who works when, and what memories hold.  A worker reads the trace and draws, so that
// a long one never holds up the page; here are the view, the pointer and the keys.
import { fingers } from "/ui/static/fingers.js";

const ZOOM = 1.5;

export class Timeline {
  constructor(holder, table) {
    this.holder = holder;
    this.onchoose = () => {};
    const at = Object.fromEntries((table.columns ?? []).map((name, k) => [name, k]));
    this.rowOfCall = new Map(); // the row that stands for a call: the whole kernel's
    this.callOfRow = table.rows.map((row, number) => {
      const call = row[at.index];
      if (!this.rowOfCall.has(call)) this.rowOfCall.set(call, number);
      return call;
    });
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.worker = new Worker("/ui/static/timeline_worker.js");
    this.worker.onmessage = (event) => this.told(event.data);
    this.worker.postMessage({ op: "read", url: new URL(holder.dataset.trace, location.href).href });
    this.chosen = null;
  }

  told(message) {
    if (message.op === "failed") {
      this.holder.querySelector("p").textContent = `There is no timeline: ${message.why}`;
    } else if (message.op === "ready") {
      this.cycles = message.cycles;
      this.clock = message.clock_hz;
      this.view = [0, message.cycles];
      this.start(message.height, message.note);
      this.reveal();
    } else if (message.op === "at") {
      const row = this.rowOfCall.get(message.call);
      if (row !== undefined) this.onchoose(row);
    } else if (message.op === "span") {
      const [from, to] = message.span, width = to - from;
      if (from < this.view[0] || to > this.view[1] || width < (this.view[1] - this.view[0]) / 200) {
        const around = Math.max(width * 3, 1);
        this.look((from + to) / 2 - around / 2, (from + to) / 2 + around / 2);
      }
    }
  }

  start(height, note) {
    this.height = height;
    this.canvas.style.height = `${height}px`;
    const tools = document.createElement("div");
    tools.className = "tools";
    for (const [name, label, act] of [
      ["+", "Zoom in", () => this.zoom(1 / ZOOM)], ["−", "Zoom out", () => this.zoom(ZOOM)],
      ["‹", "Earlier", () => this.move(-0.5)], ["›", "Later", () => this.move(0.5)], ["All", "Show all of the run", () => this.look(0, this.cycles)],
    ]) {
      const button = tools.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
    }
    const about = tools.appendChild(document.createElement("span"));
    about.className = "dim";
    about.textContent = note;
    this.holder.replaceChildren(this.canvas, tools);
    const offscreen = this.canvas.transferControlToOffscreen();
    this.worker.postMessage({ op: "canvas", canvas: offscreen, colours: coloursOf() }, [offscreen]);
    new ResizeObserver(() => this.draw()).observe(this.holder);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.worker.postMessage({ op: "colours", colours: coloursOf() });
      this.draw();
    });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX)) return;
      event.preventDefault();
      if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, event.offsetX / this.canvas.clientWidth);
      else this.move((event.deltaX || event.deltaY) / this.canvas.clientWidth);
    }, { passive: false });
    fingers(this.canvas, {
      view: () => this.view,
      pan: ([from, to], x) => {
        const by = (x / this.canvas.clientWidth) * (to - from);
        this.look(from - by, to - by);
      },
      pinch: ([from, to], factor, was, now) => {
        const across = this.canvas.clientWidth, held = from + (was.x / across) * (to - from);
        const first = held - (now.x / across) * ((to - from) / factor);
        this.look(first, first + (to - from) / factor);
      },
      tap: (x) => this.worker.postMessage({ op: "at", x }),
    });
    this.holder.addEventListener("keydown", (event) => {
      if (event.target !== this.holder) return;
      const act = {
        ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), "+": () => this.zoom(1 / ZOOM),
        "=": () => this.zoom(1 / ZOOM), "-": () => this.zoom(ZOOM), Home: () => this.look(0, this.cycles),
        Enter: () => this.worker.postMessage({ op: "at", x: this.canvas.clientWidth / 2 }),
      }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    this.draw();
  }

  zoom(factor, around = 0.5) {
    const [from, to] = this.view, place = from + around * (to - from);
    this.look(place - (place - from) * factor, place + (to - place) * factor);
  }

  move(share) {
    const by = share * (this.view[1] - this.view[0]);
    this.look(this.view[0] + by, this.view[1] + by);
  }

  look(from, to) {
    const width = Math.min(Math.max(to - from, 20), this.cycles);
    const first = Math.min(Math.max(from, 0), this.cycles - width);
    this.view = [first, first + width];
    this.draw();
  }

  select(row, { reveal }) {
    this.chosen = row === null ? null : this.callOfRow[row] ?? null;
    this.draw();
    if (reveal) this.reveal();
  }

  // Where the chosen call is; before the trace is read, when it is.
  reveal() {
    if (this.view && this.chosen !== null) this.worker.postMessage({ op: "span", call: this.chosen });
  }

  draw() {
    if (!this.view || this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.worker.postMessage({
        op: "draw", view: this.view, width: this.canvas.clientWidth, scale: devicePixelRatio, chosen: this.chosen,
      });
    });
  }
}

export function coloursOf() {
  const style = getComputedStyle(document.documentElement);
  const found = {};
  for (const name of ["paper", "raised", "ink", "dim", "line", "accent", "mark", "chosen", "bad", "good"]) found[name] = style.getPropertyValue(`--${name}`).trim();
  return found;
}
