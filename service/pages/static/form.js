// What forms share: files by drop, uploads, options, and refusals shown at the field they are about.
import { refusalOf, showRefusal } from "/ui/static/pieces.js";

export function takeDrops(root) {
  for (const drop of root.querySelectorAll(".drop")) {
    const input = drop.querySelector("input"), chosen = drop.querySelector("output");
    const show = () => { chosen.textContent = [...input.files].map((file) => file.name).join(", "); };
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
}

export function upload(file, sent) {
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

export async function post(url, body, media) {
  const response = await fetch(url, { method: "POST", body, headers: { "Content-Type": media } });
  if (!response.ok) throw await refusalOf(response);
  return response.json();
}

export function options(form) {
  const found = {};
  for (const select of form.querySelectorAll("[name^=option-]")) found[select.name.slice(7)] = select.value;
  const pairs = form.elements.symbols.value.trim().split(/\s+/).filter(Boolean).map((pair) => pair.split("="));
  if (pairs.length) found.symbols = Object.fromEntries(pairs.map(([name, value]) => [name, Number(value)]));
  return found;
}

export function clearRefusal(form, refused) {
  refused.replaceChildren();
  for (const old of form.querySelectorAll(".field-error")) old.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}

// The field that a JSON pointer is about, or the nearest that holds it.
function fieldOf(form, pointer) {
  for (let place = pointer; place; place = place.slice(0, place.lastIndexOf("/"))) {
    const field = form.querySelector(`[data-pointer="${CSS.escape(place)}"]`);
    if (field) return field;
  }
  return null;
}

export function showAtFields(form, refused, found) {
  const told = found.detail ? found : { detail: String(found), code: "", errors: [], hints: [] };
  const rows = told.errors.length ? told.errors : [{ pointer: told.pointer, message: told.detail }];
  let first = null, number = 0;
  for (const row of rows) {
    const field = row.pointer ? fieldOf(form, row.pointer) : null;
    if (!field) continue;
    const said = document.createElement("p");
    said.className = "field-error";
    said.id = `error-${(number += 1)}`;
    said.textContent = row.message;
    (field.closest("label, .row") ?? field).after(said);
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", said.id);
    first ??= field;
  }
  showRefusal(refused, told);
  (first?.matches("fieldset") ? first.querySelector("input, select") : first)?.focus();
}
