// The table of layers: only the rows that are seen are in the document, however many there are.

const ROW_PX = 28, AROUND = 12;
const COLUMNS = [
  { key: "row", name: "#", width: 52, number: true },
  { key: "op", name: "Operator", width: 150 },
  { key: "nodes", name: "Nodes", width: 230 },
  { key: "cycles", name: "Cycles", width: 100, number: true },
  { key: "share", name: "Share", width: 80, number: true },
  { key: "causes", name: "Why", width: 150 },
  { key: "cause", name: "Mostly", width: 140 },
  { key: "distance", name: "From bound", width: 96, number: true },
  { key: "utilization", name: "Utilisation", width: 92, number: true },
  { key: "energy_pj", name: "Energy", width: 90, number: true },
];
const SVG = "http://www.w3.org/2000/svg";
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];

export function si(value, unit) {
  const [scale, prefix] = PREFIXES.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${Number((value / scale).toPrecision(3))} ${prefix}${unit}`.trimEnd();
}

export class LayerTable {
  constructor(holder, table, filter, counted) {
    this.holder = holder;
    this.counted = counted;
    this.onchoose = () => {};
    this.chosen = null;
    this.cursor = 0;
    this.sort = { key: "row", isDown: false };
    this.causes = table.causes;
    this.classes = table.causes.map((cause) => `cause-${cause.split(":")[0]}`);
    const at = Object.fromEntries((table.columns ?? []).map((name, k) => [name, k]));
    this.rows = table.rows.map((row, number) => {
      const get = (name) => row[at[name]];
      const cycles = get("cycles"), bound = get("lower_bound"), causes = get("causes");
      const names = get("nodes");
      return {
        row: number, part: get("part"), op: get("op"), names, cycles, causes,
        nodes: names.length > 1 ? `${names[0]} … ${names[names.length - 1]}` : names[0],
        share: cycles / Math.max(table.cycles, 1),
        cause: causes.length ? this.causes[causes[0][0]] : "–",
        distance: bound ? cycles / bound : null,
        utilization: get("utilization"), energy_pj: get("energy_pj"), placement: get("placement"),
      };
    });
    for (const row of this.rows) row.text = `${row.op} ${row.names.join(" ")} ${row.cause} ${row.placement}`.toLowerCase();
    this.widest = this.rows.reduce((most, row) => Math.max(most, row.cycles), 1);
    this.shown = this.rows;
    this.build();
    filter.addEventListener("input", () => this.filter(filter.value));
    this.filter(filter.value); // may have been typed before the layers came
  }

  build() {
    const table = document.createElement("table");
    table.setAttribute("role", "grid");
    table.setAttribute("aria-label", "Layers");
    this.table = table;
    const columns = table.appendChild(document.createElement("colgroup"));
    const head = table.createTHead().insertRow();
    for (const column of COLUMNS) {
      columns.appendChild(document.createElement("col")).style.width = `${column.width}px`;
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.className = column.number ? "n" : "";
      const button = cell.appendChild(document.createElement("button"));
      button.textContent = column.name;
      button.addEventListener("click", () => this.sortBy(column));
      column.cell = cell;
    }
    this.body = table.createTBody();
    this.holder.replaceChildren(table);
    this.holder.tabIndex = 0;
    this.holder.setAttribute("role", "region");
    this.holder.setAttribute("aria-label", "Layers, arrow keys move and Enter opens");
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-row]");
      if (row) this.onchoose(Number(row.dataset.row));
    });
    this.holder.addEventListener("keydown", (event) => this.key(event));
    this.holder.addEventListener("scroll", () => this.later(), { passive: true });
    new ResizeObserver(() => this.later()).observe(this.holder);
  }

  later() {
    if (!this.pending) this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.words = words;
    this.arrange();
    this.holder.scrollTop = 0;
  }

  sortBy(column) {
    const isDown = this.sort.key === column.key ? !this.sort.isDown : Boolean(column.number) && column.key !== "row";
    this.sort = { key: column.key, isDown };
    this.arrange();
  }

  arrange() {
    const words = this.words ?? [];
    const kept = this.rows.filter((row) => words.every((word) => row.text.includes(word)));
    const { key, isDown } = this.sort;
    const by = key === "causes" ? "cycles" : key;
    kept.sort((a, b) => {
      const x = a[by] ?? -Infinity, y = b[by] ?? -Infinity;
      return (x < y ? -1 : x > y ? 1 : a.row - b.row) * (isDown ? -1 : 1);
    });
    this.shown = kept;
    this.cursor = 0;
    this.counted.textContent = kept.length === this.rows.length ? `${kept.length}` : `${kept.length} of ${this.rows.length}`;
    this.drawn = null;
    this.draw();
  }

  key(event) {
    const page = Math.floor(this.holder.clientHeight / ROW_PX) - 2;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 }[event.key];
    if (event.target !== this.holder) return;
    if (step !== undefined && this.shown.length) {
      event.preventDefault();
      const row = Math.min(Math.max(this.at() + step, 0), this.shown.length - 1);
      this.cursor = row;
      this.reveal(row);
      this.drawn = null;
      this.draw();
    } else if (event.key === "Enter" && this.shown.length) {
      event.preventDefault();
      this.onchoose(this.shown[this.at()].row);
    }
  }

  at() {
    return Math.min(this.cursor, this.shown.length - 1);
  }

  reveal(position) {
    const top = position * ROW_PX, head = this.table.tHead.offsetHeight;
    if (top < this.holder.scrollTop) this.holder.scrollTop = top;
    const least = top + ROW_PX + head - this.holder.clientHeight + 16;
    if (this.holder.scrollTop < least) this.holder.scrollTop = least;
  }

  select(row, { reveal }) {
    this.chosen = row;
    const position = this.shown.findIndex((kept) => kept.row === row);
    if (position >= 0) {
      this.cursor = position;
      if (reveal) this.reveal(position);
    }
    this.drawn = null;
    this.draw();
  }

  draw() {
    const first = Math.max(Math.floor(this.holder.scrollTop / ROW_PX) - AROUND, 0);
    const last = Math.min(first + Math.ceil(this.holder.clientHeight / ROW_PX) + 2 * AROUND, this.shown.length);
    const name = `${first} ${last}`;
    if (this.drawn === name) return;
    this.drawn = name;
    const rows = [this.spacer(first)];
    for (let k = first; k < last; k += 1) rows.push(this.made(this.shown[k], k));
    rows.push(this.spacer(this.shown.length - last));
    this.body.replaceChildren(...rows);
    this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
    for (const column of COLUMNS) {
      const isBy = column.key === this.sort.key;
      column.cell.setAttribute("aria-sort", isBy ? (this.sort.isDown ? "descending" : "ascending") : "none");
    }
  }

  spacer(count) {
    const row = document.createElement("tr");
    row.className = "spacer";
    row.setAttribute("aria-hidden", "true");
    row.appendChild(document.createElement("td")).colSpan = COLUMNS.length;
    row.firstChild.style.height = `${count * ROW_PX}px`;
    return row;
  }

  made(told, position) {
    const row = document.createElement("tr");
    row.dataset.row = told.row;
    row.setAttribute("aria-rowindex", String(position + 2));
    row.setAttribute("aria-selected", String(told.row === this.chosen || (this.chosen === null && position === this.cursor && document.activeElement === this.holder)));
    for (const column of COLUMNS) {
      const isName = column.key === "nodes";
      const cell = row.appendChild(document.createElement(isName ? "th" : "td"));
      if (isName) cell.scope = "row";
      if (column.number) cell.className = "n";
      if (column.key === "causes") cell.appendChild(this.stack(told));
      else cell.textContent = text(told, column.key);
      if (column.key === "op" && told.part === "nodes") cell.classList.add("sub");
      if (isName) cell.title = told.names.join(", ");
    }
    return row;
  }

  stack(told) {
    const drawing = document.createElementNS(SVG, "svg");
    drawing.setAttribute("class", "stack");
    drawing.setAttribute("viewBox", "0 0 100 10");
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("aria-hidden", "true");
    let x = 0;
    for (const [cause, cycles] of told.causes) {
      const width = (100 * cycles) / this.widest;
      const rect = drawing.appendChild(document.createElementNS(SVG, "rect"));
      rect.setAttribute("class", this.classes[cause]);
      rect.setAttribute("x", x.toFixed(2));
      rect.setAttribute("width", Math.max(width, 0.1).toFixed(2));
      rect.setAttribute("height", "10");
      x += width;
    }
    return drawing;
  }
}

function text(told, key) {
  const value = told[key];
  if (value === null || value === undefined) return "–";
  switch (key) {
    case "cycles": return value.toLocaleString("en");
    case "share": return `${(100 * value).toFixed(1)} %`;
    case "distance": return `${value.toFixed(2)}×`;
    case "utilization": return `${value.toFixed(1)} %`;
    case "energy_pj": return si(value * 1e-12, "J");
    case "op": return told.part === "kernel" ? `kernel: ${value}` : value;
    default: return String(value);
  }
}
