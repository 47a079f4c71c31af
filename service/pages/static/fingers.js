// Panning, pinching and choosing on a canvas: one finger or the mouse moves what is shown, two fingers
// zoom about what is between them, a tap that moves nothing chooses.

const STILL = 3; // pixels that a tap may move

// `view()` is what is shown now; `pan(view, x, y)` shows it moved by pixels, `pinch(view, factor, from,
// to)` larger by a factor, with what was at `from` at `to`; `tap(x, y)` chooses.  Places are in pixels
// of the canvas.
export function fingers(canvas, { view, pan, pinch, tap }) {
  const down = new Map(); // by pointer: where it is
  let began = null, moved = false;

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function middle() {
    const [one, other] = [...down.values()];
    return other ? { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 } : one;
  }

  function apart() {
    const [one, other] = [...down.values()];
    return other ? Math.max(Math.hypot(one.x - other.x, one.y - other.y), 1) : 1;
  }

  // With each finger that comes or goes it begins again, from what is shown then.
  function begin() {
    began = down.size ? { view: view(), at: middle(), apart: apart() } : null;
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (down.size === 2) return; // a third finger is no gesture of ours
    if (!down.size) moved = false;
    down.set(event.pointerId, place(event));
    canvas.setPointerCapture(event.pointerId);
    moved ||= down.size === 2;
    begin();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!down.has(event.pointerId)) return;
    down.set(event.pointerId, place(event));
    const at = middle(), x = at.x - began.at.x, y = at.y - began.at.y;
    if (down.size === 2) {
      pinch(began.view, apart() / began.apart, began.at, at);
    } else if (moved || Math.hypot(x, y) > STILL) {
      moved = true;
      pan(began.view, x, y);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!down.delete(event.pointerId)) return;
    if (!moved) tap(event.offsetX, event.offsetY);
    begin();
  });
  // The page scrolls instead.
  canvas.addEventListener("pointercancel", (event) => {
    if (!down.delete(event.pointerId)) return;
    moved = true;
    begin();
  });
}
