// What every page needs: times in the reader's own zone, pieces of HTML that buttons ask for,
// requests that change something, and the table of columns that a link may be copied from.

export function timesOf(root) {
  for (const time of root.querySelectorAll("time[data-epoch]")) {
    const moment = new Date(1000 * Number(time.dataset.epoch));
    time.dateTime = moment.toISOString();
    const isToday = moment.toDateString() === new Date().toDateString();
    time.textContent = isToday
      ? moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
      : moment.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }
}

export function say(text) {
  document.getElementById("said").textContent = text;
}

// A refusal of the service as a sentence; the page asks for a key again where the session ended.
export async function refusalOf(response) {
  if (response.status === 401) {
    location.assign(`/ui/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  try {
    const found = await response.json();
    return { detail: found.detail, code: found.code, pointer: found.pointer, errors: found.errors ?? [], hints: found.hints ?? [] };
  } catch {
    return { detail: `the server answered ${response.status}`, code: "", errors: [], hints: [] };
  }
}

export function showRefusal(place, found) {
  place.replaceChildren();
  const box = place.appendChild(document.createElement("div"));
  box.className = "alert";
  box.appendChild(document.createElement("p")).textContent = `${found.detail} ${found.code && `(${found.code})`}`;
  if (found.errors.length) {
    const list = box.appendChild(document.createElement("ul"));
    for (const error of found.errors) {
      list.appendChild(document.createElement("li")).textContent =
        (error.pointer ? `${error.pointer}: ` : "") + error.message;
    }
  }
  for (const hint of found.hints) box.appendChild(document.createElement("p")).textContent = hint;
}

export async function piece(url, options = {}) {
  const response = await fetch(url, { ...options, headers: { Accept: "application/json, text/html;q=0", ...options.headers } });
  if (!response.ok) throw await refusalOf(response);
  return response;
}

export async function fill(place, url, options = {}) {
  place.setAttribute("aria-busy", "true");
  try {
    const response = await piece(url, options);
    place.innerHTML = await response.text(); // made by a template of this server, which escapes
    timesOf(place);
    return true;
  } catch (found) {
    showRefusal(place, found.detail ? found : { detail: String(found), code: "", errors: [], hints: [] });
    return false;
  } finally {
    place.removeAttribute("aria-busy");
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-get], button[data-post]");
  if (!button) return;
  const place = document.getElementById(button.dataset.target ?? "link");
  button.disabled = true;
  try {
    if (button.dataset.get) {
      place.innerHTML = "<p class='dim'>Asking…</p>";
      if (await fill(place, button.dataset.get)) say("There is the answer.");
    } else if (button.dataset.then === "piece") {
      await fill(place, button.dataset.post, { method: "POST" });
    } else {
      const response = await fetch(button.dataset.post, { method: "POST" });
      if (!response.ok) showRefusal(place, await refusalOf(response));
      else if (button.dataset.then === "job") location.assign(`/ui/jobs/${(await response.json()).id}`);
      else location.reload();
    }
  } finally {
    button.disabled = false;
  }
});

timesOf(document);
