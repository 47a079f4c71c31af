// Models and machines become a sweep: what is new is uploaded first.
import { clearRefusal, options, post, showAtFields, takeDrops, upload } from "/ui/static/form.js";

const form = document.getElementById("new");
const refused = document.getElementById("refused"), step = document.getElementById("step");
const sent = document.getElementById("sent"), vary = document.getElementById("vary");
const base = form.elements.base;
takeDrops(form);

function another({ focus }) {
  const row = document.getElementById("row").content.firstElementChild.cloneNode(true);
  row.querySelector("button").addEventListener("click", () => {
    row.remove();
    document.getElementById("another").focus();
  });
  vary.append(row);
  if (focus) row.querySelector("input").focus();
}

// What the machine has that may be varied, with its value, as suggestions.
async function suggest() {
  const list = document.getElementById("fields");
  list.replaceChildren();
  if (!base.value) return;
  const response = await fetch(`/ui/sweeps/new/fields?hardware=${encodeURIComponent(base.value)}`);
  if (!response.ok) return; // the sweep itself says what is wrong with it
  for (const { pointer, value } of await response.json()) {
    const option = list.appendChild(document.createElement("option"));
    option.value = pointer;
    option.label = String(value);
  }
}

document.getElementById("another").addEventListener("click", () => another({ focus: true }));
base.addEventListener("change", () => {
  if (base.value && !vary.children.length) another({ focus: false });
  suggest();
});
if (base.value) {
  another({ focus: false });
  suggest();
}

const isExplored = () => form.elements.way.value === "explore";
for (const way of form.elements.way) way.addEventListener("change", () => { document.getElementById("explore-more").hidden = !isExplored(); });

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearRefusal(form, refused);
  const button = form.querySelector("button.main");
  button.disabled = true;
  try {
    const models = [];
    for (const file of form.elements["model-file"].files) {
      step.textContent = `Uploading ${file.name}…`;
      sent.hidden = false;
      models.push(await upload(file, sent));
    }
    const checked = (name) => [...form.querySelectorAll(`[name=${name}]:checked`)];
    for (const box of checked("model")) {
      box.dataset.pointer = `/models/${models.length}`;
      models.push(box.value);
    }
    const hardware = checked("hardware");
    for (const [at, box] of hardware.entries()) box.dataset.pointer = `/hardware/${at}`;
    const rows = [...vary.children].filter((row) => [...row.querySelectorAll("input")].some((input) => input.value.trim()));
    const fields = rows.map((row, at) => {
      const [name, values] = row.querySelectorAll("input");
      name.dataset.pointer = `/vary/${at}`;
      return `${name.value.trim()}=${values.value.trim()}`;
    });
    step.textContent = "Submitting…";
    const body = { models, hardware: hardware.map((box) => box.value), options: options(form) };
    if (base.value) body.base = base.value;
    if (fields.length) body.vary = fields;
    if (isExplored()) body.explore = { costs: checked("cost").map((box) => box.value), winners: Number(form.elements.winners.value) };
    if (form.elements.label.value) body.label = form.elements.label.value;
    const sweep = await post("/v1/sweeps", JSON.stringify(body), "application/json");
    location.assign(`/ui/sweeps/${sweep.id}`);
  } catch (found) {
    step.textContent = "";
    sent.hidden = true;
    showAtFields(form, refused, found);
    button.disabled = false;
  }
});
form.querySelector("button.main").disabled = false; // before this the browser would send the form itself, to nowhere
