"""Rules about a mesh: who stands on it, and how it reaches home."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from worker.compiler.machine.lint.view import Defect, SpecReader

_MOST_ENDS = (1 << 16) - 1
"""A way is a number of four bytes (`package/FORMATS.md`, `resources`)."""


def _meshes(view: SpecReader) -> Iterator[str]:
    """Pointers of the links that say they are one."""
    for link in view.items("/links"):
        if isinstance(view.raw(f"{link}/mesh"), dict):
            yield link


def _nodes(view: SpecReader, link: str) -> tuple[float, float] | None:
    rows, columns = view.number(f"{link}/mesh/rows"), view.number(f"{link}/mesh/columns")
    return (rows, columns) if rows and columns else None


def only_a_noc_is_a_mesh(view: SpecReader) -> Iterator[Defect]:
    for k, link in enumerate(_meshes(view)):
        if view.text(f"{link}/kind") != "noc":
            yield Defect(
                f"{link}/mesh", "only a noc joins instances of one level, so only a noc is a mesh",
                "kind noc, or no mesh", view.text(f"{link}/kind"),
            )  # fmt: skip
        if view.raw(f"{link}/shared_by") is not None:
            yield Defect(
                f"{link}/shared_by", "links of a mesh join two routers; nobody else shares them",
                "absent beside mesh", view.number(f"{link}/shared_by"),
            )  # fmt: skip
        if k:
            yield Defect(
                f"{link}/mesh", "a machine has one mesh; this is a second one",
                "one link with a mesh", view.text(f"{link}/name"),
            )  # fmt: skip


def nodes_hold_a_level(view: SpecReader) -> Iterator[Defect]:
    """Each node one instance, and with it all faster levels of the cores attached to it."""
    levels = view.names("/levels")
    order = list(levels)
    for link in _meshes(view):
        name, size = view.text(f"{link}/src"), _nodes(view, link)
        if name not in levels or size is None:
            continue
        nodes, instances = size[0] * size[1], view.number(f"{levels[name]}/instances")
        if instances is not None and instances != nodes:
            lack = (
                f"{instances - nodes:g} of them stand on no node and cannot be reached"
                if instances > nodes else f"{nodes - instances:g} nodes hold nothing"
            )  # fmt: skip
            yield Defect(
                f"{link}/mesh",
                f"{size[0]:g} x {size[1]:g} nodes for {instances:g} instances of {name}: {lack}",
                f"rows * columns = {instances:g}, the instances of {name}", nodes,
            )  # fmt: skip
            continue
        at = order.index(name)
        if at == 0:
            yield Defect(
                f"{link}/src", f"{name} is home, which a mesh has ports to; its nodes hold what "
                "is faster", "a level after the first", name,
            )  # fmt: skip
        for k, other in enumerate(order):
            count = view.number(f"{levels[other]}/instances")
            if count is None or (count == 1 if k < at else count % nodes == 0):
                continue
            what = (
                f"lies behind the mesh of {name}, whose ports all lead to one instance" if k < at
                else f"stands on the {nodes:g} nodes of {name}"
            )  # fmt: skip
            yield Defect(
                f"{levels[other]}/instances", f"{other} {what}",
                "1" if k < at else f"a multiple of {nodes:g}", count,
            )  # fmt: skip


def home_is_reached(view: SpecReader) -> Iterator[Defect]:
    for link in _meshes(view):
        size, ports = _nodes(view, link), list(view.items(f"{link}/mesh/ports"))
        if not ports:
            home = next(iter(view.names("/levels")), "home")
            yield Defect(
                f"{link}/mesh/ports", f"no node of the mesh reaches {home}: it has no port",
                f"the [row, column] of at least one router that {home} is attached to", "none",
            )  # fmt: skip
        if size is not None and size[0] * size[1] + len(ports) > _MOST_ENDS:
            yield Defect(
                f"{link}/mesh", "ways between so many nodes and ports have no number in a program",
                f"at most {_MOST_ENDS} nodes and ports", size[0] * size[1] + len(ports),
            )  # fmt: skip
        limits = [] if size is None else list(zip(("row", "column"), size, strict=True))
        for port in ports:
            for axis, (name, extent) in enumerate(limits):
                number = view.number(f"{port}/{axis}")
                if number is not None and number >= extent:
                    yield Defect(
                        f"{port}/{axis}", f"{name} {number:g} lies outside a mesh of "
                        f"{limits[0][1]:g} rows and {limits[1][1]:g} columns",
                        f"0 to {extent - 1:g}", number,
                    )  # fmt: skip
        seen: dict[tuple[float | None, ...], str] = {}
        for port in ports:
            at = tuple(view.number(f"{port}/{axis}") for axis in range(2))
            if None not in at and seen.setdefault(at, port) != port:
                yield Defect(
                    port, f"the same router as {seen[at]}: home is attached to it once",
                    "another router", list(at),
                )  # fmt: skip


def no_cache_beside_a_mesh(view: SpecReader) -> Iterator[Defect]:
    """What a cache holds passes no port of home; nobody says by which links it would come."""
    for link in _meshes(view):
        for level in view.items("/levels"):
            if view.managed(level) == "cache":
                yield Defect(
                    f"{level}/managed",
                    f"no node of the mesh {view.text(f'{link}/name')} holds a cache: what it has "
                    "would come by links that nothing names",
                    "scratchpad, or a machine without a mesh", "cache",
                )  # fmt: skip


MESH_RULES: tuple[Callable[[SpecReader], Iterator[Defect]], ...] = (
    only_a_noc_is_a_mesh,
    nodes_hold_a_level,
    home_is_reached,
    no_cache_beside_a_mesh,
)
