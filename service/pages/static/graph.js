// The model as a graph: a worker draws, so that a large one never holds up the page; here are the
// view, the pointer and the keys.
import { fingers } from "/ui/static/fingers.js";
import { coloursOf } from "/ui/static/timeline.js";

const ZOOM = 1.4, LEAST = 0.02, MOST = 2.5;
const scaled = (view, factor) => Math.min(Math.max(view.scale * factor, LEAST), MOST);

export class ModelGraph {
  constructor(holder, says) {
    Object.assign(this, { holder, says });
    this.onchoose = () => {};
    this.chosen = null;
    this.at = null;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.worker = new Worker("/ui/static/graph_worker.js");
    this.worker.onmessage = (event) => this.told(event.data);
    this.worker.postMessage({ op: "read", url: new URL(holder.dataset.graph, location.href).href });
  }

  told(message) {
    if (message.op === "failed") {
      this.holder.querySelector("p").textContent = `There is no graph: ${message.why}`;
    } else if (message.op === "ready") {
      this.size = [message.width, message.height];
      this.start(message);
    } else if (message.op === "hit") {
      this.onchoose(message.row);
    } else if (message.op === "at") {
      this.at = message.row;
      this.says.textContent = message.text;
      this.reveal(message);
    }
  }

  start({ count, most }) {
    const tools = document.createElement("div");
    tools.className = "tools";
    for (const [name, label, act] of [
      ["+", "Zoom in", () => this.zoom(ZOOM)], ["−", "Zoom out", () => this.zoom(1 / ZOOM)],
      ["All", "Show all of the graph", () => this.all()], ["Costliest", "Show the costliest", () => this.go("Home", most)],
    ]) {
      const button = tools.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
    }
    const about = tools.appendChild(document.createElement("span"));
    about.className = "dim";
    about.textContent = `${count} boxes; a bar is the share of the costliest, a dashed green frame runs on the host`;
    this.holder.replaceChildren(this.canvas, tools);
    const offscreen = this.canvas.transferControlToOffscreen();
    this.worker.postMessage({ op: "canvas", canvas: offscreen, colours: coloursOf() }, [offscreen]);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.worker.postMessage({ op: "colours", colours: coloursOf() });
      this.draw();
    });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1 / 1.15 : 1.15, event.offsetX, event.offsetY);
      else this.move((event.deltaX || event.deltaY) / this.view.scale, 0);
    }, { passive: false });
    fingers(this.canvas, {
      view: () => this.view,
      pan: (view, x, y) => this.look({ ...view, x: view.x - x / view.scale, y: view.y - y / view.scale }),
      pinch: (view, factor, was, now) => {
        const scale = scaled(view, factor);
        this.look({ scale, x: view.x + was.x / view.scale - now.x / scale, y: view.y + was.y / view.scale - now.y / scale });
      },
      tap: (x, y) => this.worker.postMessage({ op: "hit", x, y }),
    });
    this.holder.addEventListener("keydown", (event) => {
      if (event.target !== this.holder) return;
      const act = {
        "+": () => this.zoom(ZOOM), "=": () => this.zoom(ZOOM), "-": () => this.zoom(1 / ZOOM), 0: () => this.all(),
        Enter: () => this.at !== null && this.onchoose(this.at),
      }[event.key] ?? (/^Arrow|^Home$/.test(event.key) ? () => this.go(event.key, event.key === "Home" ? most : this.at ?? this.chosen ?? most) : null);
      if (act) { event.preventDefault(); act(); }
    });
    this.all();
    if (this.wanted !== undefined) this.select(this.wanted, { reveal: true });
  }

  go(key, row) {
    this.worker.postMessage({ op: "go", key, row });
  }

  // As much as can be read; all of it where that is little.
  all() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    const scale = Math.min(Math.max(Math.min(width / this.size[0], height / this.size[1]), LEAST), 1);
    this.look({ scale, x: (this.size[0] - width / scale) / 2, y: (this.size[1] - height / scale) / 2 });
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const { view } = this, scale = scaled(view, factor);
    this.look({ scale, x: view.x + x / view.scale - x / scale, y: view.y + y / view.scale - y / scale });
  }

  move(x, y) {
    this.look({ ...this.view, x: this.view.x + x, y: this.view.y + y });
  }

  look(view) {
    this.view = view;
    this.draw();
  }

  reveal({ x, y }) {
    const { view } = this, scale = Math.max(view.scale, 0.8);
    const width = this.canvas.clientWidth / scale, height = this.canvas.clientHeight / scale;
    const isSeen = scale === view.scale && x > view.x + 80 && x < view.x + width - 80 && y > view.y + 30 && y < view.y + height - 30;
    this.look(isSeen ? view : { scale, x: x - width / 2, y: y - height / 2 });
  }

  select(row, { reveal }) {
    this.chosen = row;
    this.wanted = row;
    if (!this.view) return; // when it is there
    if (row !== null && reveal) this.go("Home", row); else this.draw();
  }

  draw() {
    if (!this.view || this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      const { canvas } = this;
      this.worker.postMessage({
        op: "draw", view: this.view, width: canvas.clientWidth, height: canvas.clientHeight, scale: devicePixelRatio,
        chosen: this.chosen, at: this.at,
      });
    });
  }
}
