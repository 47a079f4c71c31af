// A model and a machine become a job: what is new is uploaded first.
import { clearRefusal, options, post, showAtFields, takeDrops, upload } from "/ui/static/form.js";

const form = document.getElementById("new");
const refused = document.getElementById("refused"), step = document.getElementById("step");
const sent = document.getElementById("sent");
takeDrops(form);

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearRefusal(form, refused);
  const file = form.elements["model-file"].files[0], spec = form.elements["spec-file"].files[0];
  const button = form.querySelector("button.main");
  const missing = !(file || form.elements.model?.value) ? "model" : !(spec || form.elements.hardware.value) ? "hardware" : "";
  if (missing) {
    const detail = `A job needs ${missing === "model" ? "a model" : "a machine"}.`;
    showAtFields(form, refused, { detail, code: "", errors: [], hints: [], pointer: `/${missing}` });
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
      model = await upload(file, sent);
    }
    step.textContent = "Submitting…";
    const body = { model, hardware, options: options(form) };
    if (form.elements.label.value) body.label = form.elements.label.value;
    const job = await post("/v1/jobs", JSON.stringify(body), "application/json");
    location.assign(`/ui/jobs/${job.id}`);
  } catch (found) {
    step.textContent = "";
    sent.hidden = true;
    showAtFields(form, refused, found);
    button.disabled = false;
  }
});
form.querySelector("button.main").disabled = false; // before this the browser would send the form itself, to nowhere
