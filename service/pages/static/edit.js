// The editor of specs: what is wrong or doubtful is said while somebody types, and what is valid is drawn.
import { fill, refusalOf, showRefusal } from "/ui/static/pieces.js";

const WAIT_MS = 300;
const text = document.getElementById("text"), verdict = document.getElementById("verdict");
const findings = document.getElementById("findings"), drawing = document.getElementById("drawing");
const save = document.getElementById("save");
let asked = 0, timer = 0;

function body() {
  return { method: "POST", body: text.value, headers: { "Content-Type": "application/yaml" } };
}

function shown(found) {
  findings.replaceChildren();
  const list = document.createElement("ul");
  list.className = "findings";
  for (const [kind, rows] of [["error", found.errors], ["warning", found.warnings]]) {
    for (const row of rows) {
      const item = list.appendChild(document.createElement("li"));
      item.className = kind;
      if (row.pointer) {
        const place = item.appendChild(document.createElement("button"));
        place.type = "button";
        place.className = "quiet";
        place.textContent = row.pointer;
        place.addEventListener("click", () => go(row.pointer));
        item.append(" ");
      }
      item.append(row.message);
    }
  }
  if (list.children.length) findings.appendChild(list);
}

// To the line that a pointer is most likely about: its last name that stands in the text.
function go(pointer) {
  for (const name of pointer.split("/").reverse()) {
    const at = name && !/^\d+$/.test(name) ? text.value.search(new RegExp(`(^|[\\s"-])${name.replace(/\W/g, "\\$&")}["]?:`)) : -1;
    if (at >= 0) {
      const start = text.value.indexOf(name, at);
      text.focus();
      text.setSelectionRange(start, start + name.length);
      return;
    }
  }
  text.focus();
}

async function check() {
  const number = ++asked;
  const response = await fetch("/v1/hardware/lint", body()).catch(() => null);
  if (number !== asked) return; // somebody typed on
  if (response === null || !response.ok) {
    verdict.textContent = "It cannot be read.";
    save.disabled = true;
    if (response) showRefusal(findings, await refusalOf(response));
    return;
  }
  const found = await response.json();
  if (number !== asked) return;
  const count = (rows, word) => `${rows.length} ${word}${rows.length === 1 ? "" : "s"}`;
  verdict.textContent = `${found.valid ? "Valid" : count(found.errors, "error")}, ${count(found.warnings, "doubt")}.`;
  save.disabled = !found.valid;
  shown(found);
  if (found.valid) await fill(drawing, "/ui/hardware/drawing", body());
}

text.addEventListener("input", () => {
  save.disabled = true;
  clearTimeout(timer);
  timer = setTimeout(check, WAIT_MS);
});

save.addEventListener("click", async () => {
  save.disabled = true;
  const response = await fetch("/v1/hardware", body());
  if (response.ok) location.assign(`/ui/hardware/${(await response.json()).id}`);
  else showRefusal(findings, await refusalOf(response));
});

document.querySelector("#start select").addEventListener("change", (event) => event.target.form.requestSubmit());
check();
