// A list, kept as it is now: every two seconds while something in it moves, else every ten.
import { timesOf } from "/ui/static/pieces.js";

const MOVING_MS = 2000, STILL_MS = 10000;
const { id } = document.querySelector("[data-moving]");

async function ask(search) {
  const headers = { "Tilewright-Piece": id, Accept: "application/json, text/html;q=0" };
  const response = await fetch(`${location.pathname}${search}`, { headers });
  return response.ok ? response.text() : null;
}

async function renew() {
  const here = document.getElementById(id);
  const isRead = here.contains(document.activeElement) || here.dataset.longer === "1";
  if (!document.hidden && !isRead) {
    const text = await ask(location.search).catch(() => null);
    if (text !== null) {
      const made = document.createElement("template");
      made.innerHTML = text;
      const next = made.content.getElementById(id);
      if (next.innerHTML !== here.dataset.last) {
        const copy = next.innerHTML;
        timesOf(next);
        here.replaceWith(next);
        next.dataset.last = copy;
      }
    }
  }
  const moving = document.getElementById(id).dataset.moving === "1";
  setTimeout(renew, moving ? MOVING_MS : STILL_MS);
}

document.addEventListener("click", async (event) => {
  const more = event.target.closest("button.more");
  if (!more) return;
  const search = new URLSearchParams(location.search);
  search.set("cursor", more.dataset.cursor);
  const text = await ask(`?${search}`);
  if (text === null) return;
  const made = document.createElement("template");
  made.innerHTML = text;
  timesOf(made.content);
  const here = document.getElementById(id);
  here.dataset.longer = "1"; // what was asked for would go with the next renewal
  here.querySelector("tbody").append(...made.content.querySelectorAll("tbody tr"));
  const next = made.content.querySelector("button.more");
  if (next) more.dataset.cursor = next.dataset.cursor; else more.remove();
});

for (const select of document.querySelectorAll("#filters select")) {
  select.addEventListener("change", () => select.form.requestSubmit());
}
setTimeout(renew, MOVING_MS);
