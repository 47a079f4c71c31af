// The page of a job: progress while it runs, then its layers, timeline, and the panel of one layer.
import { fill, showRefusal } from "/ui/static/pieces.js";
import { layerTable } from "/ui/static/layers.js";
import { ModelGraph } from "/ui/static/graph.js";
import { Timeline } from "/ui/static/timeline.js";

const job = document.getElementById("job");
const base = job.dataset.base;

function follow(url) {
  const events = new EventSource(url);
  const steps = document.getElementById("steps"), bar = document.getElementById("progress");
  const title = document.getElementById("running");
  events.addEventListener("stage", (event) => {
    title.textContent = JSON.parse(event.data).stage ?? title.textContent;
  });
  events.addEventListener("units", (event) => {
    const told = JSON.parse(event.data);
    const done = (told.solved ?? 0) + (told.cached ?? 0);
    if (told.total) bar.value = (100 * done) / told.total;
    steps.textContent = `${told.solved ?? 0} units solved, ${told.cached ?? 0} from the cache, of ${told.total ?? "an unknown number"}.`;
  });
  events.addEventListener("end", () => {
    events.close();
    location.reload();
  });
}

if (job.dataset.events) follow(job.dataset.events);

const place = document.getElementById("panel-place");
const holder = document.getElementById("layers");
if (holder) {
  const table = await fetch(holder.dataset.layers)
    .then((response) => (response.ok ? response.json() : Promise.reject(response.status)))
    .catch((why) => ({ rows: [], causes: [], why: `The layers could not be read (${why}).` }));
  if (table.why) showRefusal(place, { detail: table.why, code: "", errors: [], hints: [] });
  const layers = layerTable(holder, table, document.getElementById("filter"), document.getElementById("counted"));
  const timeline = new Timeline(document.getElementById("timeline"), table);
  const graph = new ModelGraph(document.getElementById("graph"), document.getElementById("graph-says"));

  const choose = async (row, { from }) => {
    layers.select(row, { reveal: from !== "table" });
    timeline.select(row, { reveal: from !== "timeline" });
    graph.select(row, { reveal: from !== "graph" });
    history.replaceState(null, "", `#layer=${row}`);
    if (await fill(place, `${base}/layers/${row}`)) {
      place.querySelector("h2").focus({ preventScroll: true });
      place.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    }
  };
  const close = () => {
    place.replaceChildren();
    layers.select(null, { reveal: false });
    timeline.select(null, { reveal: false });
    graph.select(null, { reveal: false });
    history.replaceState(null, "", location.pathname + location.search);
  };
  layers.onchoose = (row) => choose(row, { from: "table" });
  timeline.onchoose = (row) => choose(row, { from: "timeline" });
  graph.onchoose = (row) => choose(row, { from: "graph" });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-layer]");
    if (link) choose(Number(link.dataset.layer), { from: "list" });
    if (event.target.closest(".close")) close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && place.firstChild) close();
  });
  const wanted = /^#layer=(\d+)$/.exec(location.hash);
  if (wanted && Number(wanted[1]) < table.rows.length) choose(Number(wanted[1]), { from: "link" });
}
