// Reads a job's graph, draws what is asked for, and says which box is where.

const SMALL = 0.45; // of the scale, below which nothing could be read
let graph = null, canvas = null, colours = {}, view = null, chosen = null, at = null;
let byRow = new Map(), above = new Map(), below = new Map(), ranks = new Map(), places = [];

onmessage = async (event) => {
  const message = event.data;
  if (message.op === "read") await read(message.url).catch((error) => postMessage({ op: "failed", why: String(error.message ?? error) }));
  else if (message.op === "canvas") ({ canvas, colours } = message);
  else if (message.op === "colours") ({ colours } = message);
  else if (message.op === "draw") { ({ view, chosen, at } = message); draw(message); }
  else if (message.op === "hit") hit(message.x, message.y);
  else if (message.op === "go") go(message.key, message.row);
};

async function read(url) {
  const response = await fetch(url, { headers: { Accept: "application/json" } });
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Error(told.detail ?? `the server answered ${response.status}`);
  }
  graph = await response.json();
  for (const node of graph.nodes) {
    byRow.set(node.row, node);
    if (!ranks.has(node.y)) ranks.set(node.y, []);
    ranks.get(node.y).push(node);
  }
  for (const rank of ranks.values()) rank.sort((a, b) => a.x - b.x);
  const [, height] = graph.box;
  places = graph.edges.map((edge) => {
    const from = byRow.get(edge.from), to = byRow.get(edge.to);
    (below.get(edge.from) ?? below.set(edge.from, []).get(edge.from)).push(to);
    (above.get(edge.to) ?? above.set(edge.to, []).get(edge.to)).push(from);
    const middle = edge.bends.flatMap(([x, y]) => [[x, y], [x, y + height]]);
    const points = [[from.x, from.y + height], ...middle, [to.x, to.y]];
    return { points, edge, top: Math.min(from.y, to.y), bottom: Math.max(from.y, to.y) + height };
  });
  postMessage({ op: "ready", width: graph.width, height: graph.height, count: graph.nodes.length, most: graph.nodes.reduce((best, node) => (node.cycles > (best?.cycles ?? -1) ? node : best), null)?.row ?? null });
}

function told(node) {
  return {
    row: node.row, x: node.x, y: node.y + graph.box[1] / 2,
    text: `${node.op} ${node.name}: ${node.cycles.toLocaleString("en")} cycles, ${node.pct.toFixed(1)} %, mostly ${node.cause}, on the ${node.target}; reads ${(above.get(node.row) ?? []).length}, is read by ${(below.get(node.row) ?? []).length}`,
  };
}

function hit(x, y) {
  const [width, height] = graph.box, gx = x / view.scale + view.x, gy = y / view.scale + view.y;
  const found = graph.nodes.find((node) => Math.abs(node.x - gx) <= width / 2 && gy >= node.y && gy <= node.y + height);
  if (found) postMessage({ op: "hit", ...told(found) });
}

// Down and up along edges, left and right within a layer; without an edge to the next layer's nearest.
function go(key, row) {
  const here = byRow.get(row) ?? graph.nodes[0];
  if (!here) return;
  let next = here;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const rank = ranks.get(here.y);
    next = rank[rank.indexOf(here) + (key === "ArrowRight" ? 1 : -1)] ?? here;
  } else if (key !== "Home" && byRow.has(row)) {
    const ties = (key === "ArrowDown" ? below : above).get(row) ?? [];
    next = ties.reduce((best, node) => (!best || node.cycles > best.cycles ? node : best), null) ?? here;
  }
  postMessage({ op: "at", ...told(next) });
}

function draw({ width, height, scale: pixels }) {
  if (!canvas || !graph || width < 1) return;
  canvas.width = Math.round(width * pixels);
  canvas.height = Math.round(height * pixels);
  const pen = canvas.getContext("2d"), { x, y, scale } = view;
  pen.setTransform(pixels, 0, 0, pixels, 0, 0);
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, width, height);
  pen.setTransform(pixels * scale, 0, 0, pixels * scale, -x * scale * pixels, -y * scale * pixels);
  const bottom = y + height / scale, right = x + width / scale, [wide, high] = graph.box;
  for (const { points, edge, top, bottom: end } of places) {
    if (end < y || top > bottom) continue;
    const isOwn = edge.from === chosen || edge.to === chosen;
    pen.strokeStyle = isOwn ? colours.accent : colours.dim;
    pen.lineWidth = (isOwn ? 2 : 1) / Math.min(scale, 1);
    pen.globalAlpha = isOwn ? 1 : 0.55;
    pen.beginPath();
    pen.moveTo(...points[0]);
    for (let k = 1; k < points.length; k += 1) {
      const [ax, ay] = points[k - 1], [bx, by] = points[k], middle = (ay + by) / 2;
      if (ax === bx) pen.lineTo(bx, by); else pen.bezierCurveTo(ax, middle, bx, middle, bx, by);
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
  pen.textBaseline = "middle";
  const most = graph.nodes.reduce((best, node) => Math.max(best, node.cycles), 1);
  for (const node of graph.nodes) {
    if (node.y > bottom || node.y + high < y || node.x + wide / 2 < x || node.x - wide / 2 > right) continue;
    box(pen, node, most, scale, wide, high);
  }
}

function box(pen, node, most, scale, wide, high) {
  const left = node.x - wide / 2, isHost = node.target === "host";
  pen.fillStyle = node.row === chosen ? colours.chosen : colours.raised;
  pen.fillRect(left, node.y, wide, high);
  // The cost: a bar along the lower edge, as long as its share of the costliest.
  pen.fillStyle = colours.mark;
  pen.fillRect(left, node.y + high - 7, Math.max((wide * node.cycles) / most, 1), 7);
  pen.setLineDash(isHost ? [5, 3] : []);
  pen.lineWidth = (node.row === chosen || node.row === at ? 3 : isHost ? 2 : 1) / Math.min(scale, 1);
  pen.strokeStyle = node.row === at ? colours.bad : node.row === chosen ? colours.accent : isHost ? colours.good : colours.line;
  pen.strokeRect(left, node.y, wide, high);
  pen.setLineDash([]);
  if (scale < SMALL) return;
  pen.fillStyle = colours.ink;
  pen.font = "600 11px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.fillText(node.op, left + 7, node.y + 11, wide - 62);
  pen.textAlign = "right";
  pen.font = "11px system-ui, sans-serif";
  pen.fillText(`${node.pct.toFixed(1)} %`, left + wide - 7, node.y + 11, 52);
  pen.fillStyle = colours.dim;
  pen.textAlign = "left";
  pen.fillText(node.name.length > 30 ? `${node.name.slice(0, 29)}…` : node.name, left + 7, node.y + 25, wide - 14);
}
