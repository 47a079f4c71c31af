// A table that sorts and filters: only the rows that are seen are in the document, however many
// there are.  A row has its `id`, and `text`, the words that it is found by.

const ROW_PX = 28, AROUND = 12;
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];

export function si(value, unit) {
  const [scale, prefix] = PREFIXES.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${Number((value / scale).toPrecision(3))} ${prefix}${unit}`.trimEnd();
}

export class Grid {
  // Columns: `key`, `name`, `width`, `number` (sorts down first), `is_name` (heads its row), `by`
  // (the key it sorts by), and `show`, which gives a row's text or drawing.
  constructor(holder, { columns, name, filter, counted }) {
    Object.assign(this, { holder, columns, name, counted });
    this.onchoose = () => {};
    this.chosen = null;
    this.cursor = 0;
    this.rows = [];
    this.shown = [];
    this.words = [];
    this.sort = { column: columns[0], isDown: false };
    this.build();
    filter.addEventListener("input", () => { this.find(filter.value); this.holder.scrollTop = 0; });
    this.find(filter.value); // may have been typed before the rows came
  }

  build() {
    const table = document.createElement("table");
    table.setAttribute("role", "grid");
    table.setAttribute("aria-label", this.name);
    this.table = table;
    const columns = table.appendChild(document.createElement("colgroup"));
    const head = table.createTHead().insertRow();
    for (const column of this.columns) {
      columns.appendChild(document.createElement("col")).style.width = `${column.width}px`;
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.className = column.number ? "n" : "";
      const button = cell.appendChild(document.createElement("button"));
      button.textContent = column.name;
      button.addEventListener("click", () => this.sortBy(column));
      column.cell = cell;
    }
    table.style.minWidth = `${Math.max(860, this.columns.reduce((sum, column) => sum + column.width, 0) * 0.8)}px`;
    this.body = table.createTBody();
    this.holder.replaceChildren(table);
    this.holder.tabIndex = 0;
    this.holder.setAttribute("role", "region");
    this.holder.setAttribute("aria-label", `${this.name}, arrow keys move and Enter opens`);
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

  // Other rows, or the same with other values; what is chosen and the place in them stay.
  set(rows) {
    this.rows = rows;
    this.arrange(this.shown[this.cursor]?.id);
  }

  find(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.arrange();
  }

  sortBy(column) {
    const isFirst = this.columns.indexOf(column) === 0;
    const isDown = this.sort.column === column ? !this.sort.isDown : Boolean(column.number) && !isFirst;
    this.sort = { column, isDown };
    this.arrange();
  }

  arrange(at = null) {
    const kept = this.rows.filter((row) => this.words.every((word) => row.text.includes(word)));
    const { column, isDown } = this.sort, by = column.by ?? column.key;
    kept.sort((a, b) => {
      const x = a[by] ?? -Infinity, y = b[by] ?? -Infinity;
      return (x < y ? -1 : x > y ? 1 : a.id - b.id) * (isDown ? -1 : 1);
    });
    this.shown = kept;
    this.cursor = Math.max(kept.findIndex((row) => row.id === at), 0);
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
      this.onchoose(this.shown[this.at()].id);
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

  select(id, { reveal }) {
    this.chosen = id;
    const position = this.shown.findIndex((kept) => kept.id === id);
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
    for (const column of this.columns) {
      const isBy = column === this.sort.column;
      column.cell.setAttribute("aria-sort", isBy ? (this.sort.isDown ? "descending" : "ascending") : "none");
    }
  }

  spacer(count) {
    const row = document.createElement("tr");
    row.className = "spacer";
    row.setAttribute("aria-hidden", "true");
    row.appendChild(document.createElement("td")).colSpan = this.columns.length;
    row.firstChild.style.height = `${count * ROW_PX}px`;
    return row;
  }

  made(told, position) {
    const row = document.createElement("tr");
    row.dataset.row = told.id;
    row.setAttribute("aria-rowindex", String(position + 2));
    row.setAttribute("aria-selected", String(told.id === this.chosen || (this.chosen === null && position === this.cursor && document.activeElement === this.holder)));
    for (const column of this.columns) {
      const cell = row.appendChild(document.createElement(column.is_name ? "th" : "td"));
      if (column.is_name) cell.scope = "row";
      if (column.number) cell.className = "n";
      if (column.title) cell.title = column.title(told);
      if (column.is_sub?.(told)) cell.classList.add("sub");
      const value = column.show ? column.show(told) : told[column.key];
      cell.append(value ?? "–");
    }
    return row;
  }
}
