// Reads a job's trace (Perfetto's JSON, gzipped) into lanes of numbers, and draws what is asked for.

const LANE_PX = 18, MEMORY_PX = 44, AXIS_PX = 22, NAME_PX = 92, MOST_ENGINES = 24;
const COMPUTE = "#2f6fb3", MOVE = "#c8641b", HOST = "#3f8f4f", KERNELS = ["#7d8794", "#a3acb8"];
let lanes = [], calls = { starts: [], ends: [] }, cycles = 0, clock = 1, canvas = null, colours = {}, last = null;

onmessage = async (event) => {
  const message = event.data;
  if (message.op === "read") await read(message.url).catch((error) => postMessage({ op: "failed", why: String(error.message ?? error) }));
  else if (message.op === "canvas") ({ canvas, colours } = message);
  else if (message.op === "colours") ({ colours } = message);
  else if (message.op === "draw") { last = message; draw(message); }
  else if (message.op === "at") choose(message.x);
  else if (message.op === "span") postMessage({ op: "span", span: [calls.starts[message.call], calls.ends[message.call]] });
};

async function read(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  const text = await new Response(response.body.pipeThrough(new DecompressionStream("gzip"))).text();
  const trace = JSON.parse(text);
  clock = trace.otherData.clock_hz;
  cycles = Math.max(trace.otherData.cycles, 1);
  const scale = clock / 1e6; // of microseconds
  const names = new Map(), found = new Map(), memories = new Map();
  for (const event of trace.traceEvents) {
    const key = `${event.pid} ${event.tid ?? ""}`;
    if (event.ph === "M") {
      names.set(event.name === "process_name" ? `${event.pid}` : key, event.args.name);
    } else if (event.ph === "X") {
      const start = event.ts * scale, end = start + event.dur * scale;
      if (event.pid === 0) {
        calls.starts.push(event.args.start_cycle ?? start);
        calls.ends.push(event.args.end_cycle ?? end);
      }
      if (!found.has(key)) found.set(key, { pid: event.pid, tid: event.tid, starts: [], ends: [], colours: [] });
      const lane = found.get(key);
      lane.starts.push(start);
      lane.ends.push(end);
      lane.colours.push(event.pid === 0 ? (event.tid === 1 ? HOST : KERNELS[calls.starts.length % 2]) : event.name.startsWith("COMPUTE") ? COMPUTE : MOVE);
    } else if (event.ph === "C") {
      if (!memories.has(event.name)) memories.set(event.name, { starts: [], used: [] });
      const memory = memories.get(event.name);
      memory.starts.push(event.ts * scale);
      memory.used.push(event.args.bytes);
    }
  }
  const sorted = [...found.values()].sort((a, b) => a.pid - b.pid || a.tid - b.tid);
  const kept = sorted.slice(0, MOST_ENGINES + 2);
  const many = sorted.filter((lane) => lane.pid > 1).length > 0;
  for (const lane of kept) {
    const engine = names.get(`${lane.pid} ${lane.tid}`) ?? "";
    lane.name = lane.pid === 0 ? (lane.tid === 1 ? "host" : "kernels") : many ? `${names.get(`${lane.pid}`).replace("core ", "")}: ${engine}` : engine;
    lane.height = LANE_PX;
  }
  const capacities = trace.otherData.memories ?? {};
  for (const [name, memory] of memories) {
    kept.push({ name, height: MEMORY_PX, isMemory: true, capacity: capacities[name] ?? Math.max(...memory.used), starts: memory.starts, used: memory.used });
  }
  let top = AXIS_PX;
  for (const lane of kept) { lane.top = top; top += lane.height + 4; }
  lanes = kept;
  const notes = ["blue computes, orange moves"];
  if (sorted.length > kept.length - memories.size) notes.push(`${sorted.length - (kept.length - memories.size)} more engines are not drawn`);
  if (!memories.size) notes.push("this job's release stored no memory over time");
  postMessage({ op: "ready", cycles, clock_hz: clock, height: top + 4, note: notes.join("; ") });
}

// Index of the first value above `wanted`.
function above(values, wanted) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle + 1; else high = middle;
  }
  return low;
}

function choose(x) {
  if (!last) return;
  const share = (x - NAME_PX) / (last.width - NAME_PX);
  if (share < 0) return;
  const call = above(calls.starts, last.view[0] + share * (last.view[1] - last.view[0])) - 1;
  if (call >= 0) postMessage({ op: "at", call });
}

function draw({ view, width, scale, chosen }) {
  if (!canvas || width < 1) return;
  const height = lanes.length ? lanes[lanes.length - 1].top + lanes[lanes.length - 1].height + 8 : 40;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const [from, to] = view, step = (width - NAME_PX) / (to - from);
  const x = (cycle) => NAME_PX + (cycle - from) * step;
  if (chosen !== null && calls.starts[chosen] !== undefined) {
    const left = Math.max(x(calls.starts[chosen]), NAME_PX), right = Math.min(x(calls.ends[chosen]), width);
    pen.fillStyle = colours.chosen;
    pen.fillRect(left, 0, Math.max(right - left, 2), height);
  }
  axis(pen, from, to, x, height);
  for (const lane of lanes) {
    if (lane.isMemory) memory(pen, lane, from, to, x, width); else slices(pen, lane, from, to, x, width);
    pen.fillStyle = colours.paper;
    pen.fillRect(0, lane.top - 1, NAME_PX - 1, lane.height + 2);
    pen.fillStyle = colours.ink;
    pen.textAlign = "left";
    pen.fillText(lane.name, 8, lane.top + (lane.isMemory ? 8 : lane.height / 2), NAME_PX - 12);
    if (lane.isMemory) {
      pen.fillStyle = colours.dim;
      pen.fillText(bytes(lane.capacity), 8, lane.top + 23, NAME_PX - 12);
    }
  }
  if (chosen !== null && calls.starts[chosen] !== undefined) {
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    const left = Math.max(x(calls.starts[chosen]), NAME_PX), right = Math.min(x(calls.ends[chosen]), width - 1);
    if (right > NAME_PX && left < width) pen.strokeRect(left, AXIS_PX - 2, Math.max(right - left, 2), height - AXIS_PX - 2);
  }
}

function axis(pen, from, to, x, height) {
  const wanted = (to - from) / 6, decade = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((k) => k * decade).find((size) => size >= wanted) ?? wanted;
  pen.textAlign = "center";
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
    pen.fillStyle = colours.line;
    pen.fillRect(x(tick), AXIS_PX - 4, 1, height);
    pen.fillStyle = colours.dim;
    pen.textAlign = x(tick) < NAME_PX + 20 ? "left" : "center";
    pen.fillText(tick === 0 ? "0" : seconds(tick / clock), x(tick), 9);
  }
}

function slices(pen, lane, from, to, x, width) {
  pen.fillStyle = colours.raised;
  pen.fillRect(NAME_PX, lane.top, width - NAME_PX, lane.height);
  let edge = NAME_PX;
  // Slices of a lane follow each other: ends ascend as starts do.
  for (let k = above(lane.ends, from); k < lane.starts.length && lane.starts[k] < to; k += 1) {
    const left = Math.max(x(lane.starts[k]), NAME_PX), right = Math.min(x(lane.ends[k]), width);
    if (right <= edge + 0.25) continue; // nothing of it would be seen
    pen.fillStyle = lane.colours[k];
    pen.fillRect(left, lane.top + 1, Math.max(right - left - (right - left > 3 ? 0.5 : 0), 0.5), lane.height - 2);
    edge = Math.max(right, left + 0.5);
  }
}

function memory(pen, lane, from, to, x, width) {
  pen.fillStyle = colours.raised;
  pen.fillRect(NAME_PX, lane.top, width - NAME_PX, lane.height);
  const most = Math.max(lane.capacity, 1), base = lane.top + lane.height;
  pen.fillStyle = colours.mark;
  pen.beginPath();
  pen.moveTo(NAME_PX, base);
  let k = Math.max(above(lane.starts, from) - 1, 0), y = base;
  for (; k < lane.starts.length && lane.starts[k] <= to; k += 1) {
    const at = Math.max(x(lane.starts[k]), NAME_PX);
    pen.lineTo(at, y);
    y = base - (Math.min(lane.used[k], most) / most) * (lane.height - 2);
    pen.lineTo(at, y);
  }
  pen.lineTo(width, y);
  pen.lineTo(width, base);
  pen.fill();
}

function seconds(value) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(4))} ${unit}`;
  }
  return `${value} s`;
}

function bytes(value) {
  for (const [scale, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(4))} ${unit}`;
  }
  return `${value} B`;
}
