// The table of layers.
import { Grid, si } from "/ui/static/grid.js";

const SVG = "http://www.w3.org/2000/svg";

function columns(table, widest) {
  const classes = table.causes.map((cause) => `cause-${cause.split(":")[0]}`);
  return [
    { key: "id", name: "#", width: 52, number: true },
    { key: "op", name: "Operator", width: 150, show: (row) => (row.part === "kernel" ? `kernel: ${row.op}` : row.op), is_sub: (row) => row.part === "nodes" },
    { key: "nodes", name: "Nodes", width: 230, is_name: true, title: (row) => row.names.join(", ") },
    { key: "cycles", name: "Cycles", width: 100, number: true, show: (row) => row.cycles.toLocaleString("en") },
    { key: "share", name: "Share", width: 80, number: true, show: (row) => `${(100 * row.share).toFixed(1)} %` },
    { key: "causes", name: "Why", width: 150, by: "cycles", show: (row) => stack(row, classes, widest) },
    { key: "cause", name: "Mostly", width: 140 },
    { key: "distance", name: "From bound", width: 96, number: true, show: (row) => row.distance && `${row.distance.toFixed(2)}×` },
    { key: "utilization", name: "Utilisation", width: 92, number: true, show: (row) => (row.utilization === null ? null : `${row.utilization.toFixed(1)} %`) },
    { key: "energy_pj", name: "Energy", width: 90, number: true, show: (row) => (row.energy_pj === null ? null : si(row.energy_pj * 1e-12, "J")) },
  ];
}

export function layerTable(holder, table, filter, counted) {
  const at = Object.fromEntries((table.columns ?? []).map((name, k) => [name, k]));
  const rows = table.rows.map((row, number) => {
    const get = (name) => row[at[name]];
    const cycles = get("cycles"), bound = get("lower_bound"), causes = get("causes");
    const names = get("nodes"), cause = causes.length ? table.causes[causes[0][0]] : "–";
    return {
      id: number, part: get("part"), op: get("op"), names, cycles, causes, cause,
      nodes: names.length > 1 ? `${names[0]} … ${names[names.length - 1]}` : names[0],
      share: cycles / Math.max(table.cycles, 1),
      distance: bound ? cycles / bound : null,
      utilization: get("utilization"), energy_pj: get("energy_pj"),
      text: `${get("op")} ${names.join(" ")} ${cause} ${get("placement")}`.toLowerCase(),
    };
  });
  const widest = rows.reduce((most, row) => Math.max(most, row.cycles), 1);
  const grid = new Grid(holder, { columns: columns(table, widest), name: "Layers", filter, counted });
  grid.set(rows);
  return grid;
}

function stack(told, classes, widest) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("class", "stack");
  drawing.setAttribute("viewBox", "0 0 100 10");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  let x = 0;
  for (const [cause, cycles] of told.causes) {
    const width = (100 * cycles) / widest;
    const rect = drawing.appendChild(document.createElementNS(SVG, "rect"));
    rect.setAttribute("class", classes[cause]);
    rect.setAttribute("x", x.toFixed(2));
    rect.setAttribute("width", Math.max(width, 0.1).toFixed(2));
    rect.setAttribute("height", "10");
    x += width;
  }
  return drawing;
}
