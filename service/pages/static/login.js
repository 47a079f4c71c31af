// Browsers send no strict cookie with a page that another site linked to: ask from here, once.
const form = document.getElementById("login");
const response = await fetch("/ui/session", { headers: { Accept: "application/json" } });
if (response.ok && !document.querySelector(".alert") && form.dataset.next !== "/ui/") {
  location.replace(form.dataset.next);
}
