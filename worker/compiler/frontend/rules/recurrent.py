"""Rules of recurrent layers: directions, activations, and the shapes their gates need."""

from __future__ import annotations

from collections.abc import Iterator

from worker.compiler.frontend.rules.kinds import at_least, one_of, rank_is
from worker.compiler.frontend.rules.site import Problem, Rule, Site

_ACTIVATIONS = frozenset(
    {"relu", "tanh", "sigmoid", "affine", "leakyrelu", "thresholdedrelu", "scaledtanh",
     "hardsigmoid", "elu", "softsign", "softplus"}
)  # fmt: skip


_LISTED = ", ".join(sorted(_ACTIVATIONS))


def _shapes(gates: int, functions: int) -> Rule:
    """Everything follows from X, the hidden size and the number of directions."""

    def check(site: Site) -> Iterator[Problem]:
        directions = 2 if site.attr("direction") == "bidirectional" else 1
        named = site.attr("activations") if site.has("activations") else None
        if named is not None:
            if len(named) != directions * functions:
                yield Problem(
                    f"'activations' names {len(named)} functions", directions * functions,
                    len(named),
                )  # fmt: skip
                return
            unknown = [name for name in named if str(name).lower() not in _ACTIVATIONS]
            if unknown:
                yield Problem(f"'activations' names {unknown[0]!r}", _LISTED,
                              unknown[0])  # fmt: skip
                return
        hidden, given = site.attr("hidden_size"), site.dims("R")
        if hidden is None:
            hidden = given[-1] if given else None
        if hidden is None:
            return
        yield from _contradictions(site, gates, directions, hidden)

    return check


def _contradictions(site: Site, gates: int, directions: int, hidden: int) -> Iterator[Problem]:
    x, layout = site.dims("X"), site.attr("layout") or 0
    batch = width = steps = None
    if x is not None and len(x) == 3:
        steps, batch, width = (x[1], x[0], x[2]) if layout else x
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    want: dict[str, tuple[int | None, ...]] = {
        "W": (directions, gates * hidden, width),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
        "sequence_lens": (batch,),
        "initial_h": state,
        "initial_c": state,
        "P": (directions, 3 * hidden),
    }
    for name, shape in want.items():
        dims = site.dims(name)
        if dims is None:
            continue
        if len(dims) != len(shape) or any(
            None not in (a, b) and a != b for a, b in zip(dims, shape, strict=True)
        ):
            yield Problem(f"{name!r} has shape {list(dims)}", list(shape), list(dims))
            return
    lens = site.const("sequence_lens")
    if lens is not None and steps is not None and lens.size:
        for value in (int(lens.min()), int(lens.max())):
            if not 0 <= value <= steps:
                yield Problem(f"'sequence_lens' has {value}", f"0 to {steps}", value)
                return


def _layer(gates: int, functions: int) -> tuple[Rule, ...]:
    return (
        rank_is(0, 3),
        one_of("direction", "forward", "reverse", "bidirectional"),
        one_of("layout", 0, 1),
        at_least("hidden_size", 1),
        _shapes(gates, functions),
    )


def _scanned(site: Site) -> Iterator[Problem]:
    """Directions are 0 or 1; they and the axes are one for each sequence."""
    count = site.attr("num_scan_inputs") or 0
    if count < 1 or count > len(site.node.inputs):
        yield Problem(f"'num_scan_inputs' is {count}", f"1 to {len(site.node.inputs)}", count)
        return
    body = site.node.attributes["body"].as_graph() if site.has("body") else None
    states = len(site.node.inputs) - count - (1 if site.version < 9 else 0)
    made = None if body is None else len(body.outputs) - states
    for name, want in (
        ("directions", count), ("scan_input_directions", count), ("scan_output_directions", made),
        ("scan_input_axes", count), ("scan_output_axes", made),
    ):  # fmt: skip
        values = site.attr(name)
        if values is None:
            continue
        if want is not None and len(values) != want:
            yield Problem(f"{name!r} has {len(values)} entries for {want} sequences", want,
                          len(values))  # fmt: skip
            return
        if name.endswith("directions") and not set(values) <= {0, 1}:
            yield Problem(f"{name!r} is {list(values)}", "0 or 1 each", list(values))
            return


RULES: dict[str, tuple[Rule, ...]] = {
    "Scan": (_scanned,),
    "RNN": _layer(1, 1),
    "GRU": _layer(3, 2),
    "LSTM": _layer(4, 3),
}
