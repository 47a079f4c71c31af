// A model and a machine become a job: what is new is uploaded first.
import { refusalOf, showRefusal } from "/ui/static/pieces.js";

const form = document.getElementById("new");
const refused = document.getElementById("refused"), step = document.getElementById("step");
const sent = document.getElementById("sent");

for (const drop of document.querySelectorAll(".drop")) {
  const input = drop.querySelector("input"), chosen = drop.querySelector("output");
  const show = () => { chosen.textContent = input.files[0]?.name ?? ""; };
  input.addEventListener("change", show);
  for (const name of ["dragenter", "dragover"]) {
    drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) { input.files = event.dataTransfer.files; show(); }
  });
}

function upload(file) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not say how far an upload is
    request.open("POST", `/v1/models?name=${encodeURIComponent(file.name.replace(/\.(onnx|zip)$/, ""))}`);
    request.setRequestHeader("Content-Type", file.name.endsWith(".zip") ? "application/zip" : "application/octet-stream");
    request.upload.onprogress = (event) => { if (event.lengthComputable) sent.value = (100 * event.loaded) / event.total; };
    request.onload = async () => {
      const response = new Response(request.responseText, { status: request.status });
      if (response.ok) resolve((await response.json()).id); else reject(await refusalOf(response));
    };
    request.onerror = () => reject({ detail: "the connection broke", code: "", errors: [], hints: [] });
    request.send(file);
  });
}

async function post(url, body, media) {
  const response = await fetch(url, { method: "POST", body, headers: { "Content-Type": media } });
  if (!response.ok) throw await refusalOf(response);
  return response.json();
}

function options() {
  const found = {};
  for (const select of form.querySelectorAll("[name^=option-]")) found[select.name.slice(7)] = select.value;
  const pairs = form.elements.symbols.value.trim().split(/\s+/).filter(Boolean).map((pair) => pair.split("="));
  if (pairs.length) found.symbols = Object.fromEntries(pairs.map(([name, value]) => [name, Number(value)]));
  return found;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  refused.replaceChildren();
  const file = form.elements["model-file"].files[0], spec = form.elements["spec-file"].files[0];
  const button = form.querySelector("button.main");
  const missing = !(file || form.elements.model?.value) ? "a model" : !(spec || form.elements.hardware.value) ? "a machine" : "";
  if (missing) {
    showRefusal(refused, { detail: `A job needs ${missing}.`, code: "", errors: [], hints: [] });
    return;
  }
  button.disabled = true;
  try {
    let hardware = form.elements.hardware.value;
    if (spec) {
      step.textContent = "Reading the spec…";
      const media = spec.name.endsWith(".json") ? "application/json" : "application/yaml";
      hardware = (await post("/v1/hardware", await spec.text(), media)).id;
    }
    let model = form.elements.model?.value;
    if (file) {
      step.textContent = "Uploading the model…";
      sent.hidden = false;
      model = await upload(file);
    }
    step.textContent = "Submitting…";
    const body = { model, hardware, options: options() };
    if (form.elements.label.value) body.label = form.elements.label.value;
    const job = await post("/v1/jobs", JSON.stringify(body), "application/json");
    location.assign(`/ui/jobs/${job.id}`);
  } catch (found) {
    step.textContent = "";
    sent.hidden = true;
    showRefusal(refused, found.detail ? found : { detail: String(found), code: "", errors: [], hints: [] });
    button.disabled = false;
  }
});
