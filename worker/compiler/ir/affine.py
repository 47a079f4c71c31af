"""Affine expressions over named integer variables, with floor-division and modulo.

Used with two kinds of variables: axes of an operator's domain (accesses) and loop variables of a
schedule (boxes).  Expressions simplify as they are built: terms are sorted, merged, and zero
coefficients dropped, so equal maps written differently usually compare equal.

Source: the access maps of 2-architecture.md; the same role as quasi-affine maps in polyhedral
compilers, restricted to what boxes and strides need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

Interval: TypeAlias = "tuple[int, int]"
"""Inclusive (low, high)."""


@dataclass(frozen=True, slots=True)
class Var:
    """A variable, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """floor(arg / divisor), divisor >= 1."""

    arg: Affine
    divisor: int


@dataclass(frozen=True, slots=True)
class Mod:
    """arg - divisor * floor(arg / divisor), divisor >= 1."""

    arg: Affine
    divisor: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The integer value held by read slot `slot` at this point: a data-dependent index (Gather).

    Legal only inside an Access of the same operator, referring to an earlier slot.
    """

    slot: int


Atom: TypeAlias = "Var | FloorDiv | Mod | Lookup"


def _atom_key(atom: Atom) -> tuple[object, ...]:
    match atom:
        case Var(name):
            return (0, name)
        case FloorDiv(arg, divisor):
            return (1, divisor, _affine_key(arg))
        case Mod(arg, divisor):
            return (2, divisor, _affine_key(arg))
        case Lookup(slot):
            return (3, slot)


def _affine_key(expr: Affine) -> tuple[object, ...]:
    return (expr.const, *((coeff, _atom_key(atom)) for atom, coeff in expr.terms))


@dataclass(frozen=True, slots=True)
class Affine:
    """sum(coeff * atom) + const.  Build with `const`, `var`, operators, `.floordiv`, `.mod`."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    @staticmethod
    def of(value: Affine | int | str) -> Affine:
        """Coerce an int (constant) or str (variable)."""
        if isinstance(value, Affine):
            return value
        if isinstance(value, str):
            return Affine(((Var(value), 1),), 0)
        return Affine((), value)

    def __add__(self, other: Affine | int) -> Affine:
        other = Affine.of(other)
        if not (self.terms and other.terms):  # what is canonical stays so
            if not (other.terms or other.const):
                return self
            return Affine(self.terms or other.terms, self.const + other.const)
        return _make((*self.terms, *other.terms), self.const + other.const)

    __radd__ = __add__

    def __sub__(self, other: Affine | int) -> Affine:
        other = Affine.of(other)
        return self + other * -1 if other.terms else self + -other.const

    def __rsub__(self, other: int) -> Affine:
        return self * -1 + other

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if not factor:
            return Affine()
        # Their order and what re-joins (see `_make`) do not depend on a common factor.
        return Affine(tuple([(atom, c * factor) for atom, c in self.terms]), self.const * factor)

    __rmul__ = __mul__

    def __neg__(self) -> Affine:
        return self * -1

    def floordiv(self, divisor: int) -> Affine:
        """floor(self / divisor), pulling out the part divisible by `divisor`."""
        if divisor < 1:
            raise ValueError(f"divisor must be >= 1, got {divisor}")
        if divisor == 1:
            return self
        whole = tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0)
        rest = tuple((a, c) for a, c in self.terms if c % divisor != 0)
        whole_const, rest_const = divmod(self.const, divisor)
        outside = _make(whole, whole_const)
        if not rest:
            return outside  # floor(rest_const / divisor) == 0 as 0 <= rest_const < divisor
        inner = _make(rest, rest_const)
        if len(rest) == 1 and rest_const == 0 and rest[0][1] == 1:
            atom = rest[0][0]
            if isinstance(atom, FloorDiv):  # (x // a) // b == x // (a*b)
                return outside + atom.arg.floordiv(atom.divisor * divisor)
            if isinstance(atom, Mod) and divisor >= atom.divisor:
                return outside
        return outside + _make(((FloorDiv(inner, divisor), 1),), 0)

    def mod(self, divisor: int) -> Affine:
        """self modulo divisor (result in [0, divisor)), dropping multiples of `divisor`.

        Coefficients are not reduced, so that the matching `floordiv` has the same argument and the
        two re-join (see `_make`).
        """
        if divisor < 1:
            raise ValueError(f"divisor must be >= 1, got {divisor}")
        if divisor == 1:
            return Affine()
        rest = tuple((a, c) for a, c in self.terms if c % divisor != 0)
        const = self.const % divisor
        if not rest:
            return Affine((), const)
        if len(rest) == 1 and const == 0 and rest[0][1] == 1:
            atom = rest[0][0]
            if isinstance(atom, Mod) and atom.divisor <= divisor:
                return _make(rest, 0)
            if isinstance(atom, Mod) and atom.divisor % divisor == 0:
                return atom.arg.mod(divisor)
        return _make(((Mod(_make(rest, const), divisor), 1),), 0)

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def is_linear(self) -> bool:
        """True when no FloorDiv, Mod or Lookup occurs."""
        return all(isinstance(atom, Var) for atom, _ in self.terms)

    @property
    def has_lookup(self) -> bool:
        for atom, _ in self.terms:  # a loop: asked tens of thousands of times in one compile
            if not isinstance(atom, Var) and (isinstance(atom, Lookup) or atom.arg.has_lookup):
                return True
        return False

    def coeff(self, name: str) -> int:
        """Coefficient of the plain variable `name` (0 if it occurs only inside // or %)."""
        return next((c for a, c in self.terms if isinstance(a, Var) and a.name == name), 0)

    def variables(self) -> tuple[str, ...]:
        """All variable names, in order of first occurrence, each once."""
        seen: dict[str, None] = {}
        for atom, _ in self.terms:
            match atom:
                case Var(name):
                    seen.setdefault(name)
                case FloorDiv(arg, _) | Mod(arg, _):
                    for name in arg.variables():
                        seen.setdefault(name)
                case Lookup():
                    pass
        return tuple(seen)

    def substitute(self, values: Mapping[str, Affine | int]) -> Affine:
        """Replace variables by expressions; variables not in `values` stay."""
        result = Affine((), self.const)
        for atom, c in self.terms:
            match atom:
                case Var(name):
                    part = Affine.of(values[name]) if name in values else Affine(((atom, 1),), 0)
                case FloorDiv(arg, divisor):
                    part = arg.substitute(values).floordiv(divisor)
                case Mod(arg, divisor):
                    part = arg.substitute(values).mod(divisor)
                case Lookup():
                    part = Affine(((atom, 1),), 0)
            result = result + part * c
        return result

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Value at a point.  Raises KeyError for an unbound variable."""
        total = self.const
        for atom, c in self.terms:
            match atom:
                case Var(name):
                    total += c * values[name]
                case FloorDiv(arg, divisor):
                    total += c * (arg.evaluate(values) // divisor)
                case Mod(arg, divisor):
                    total += c * (arg.evaluate(values) % divisor)
                case Lookup(slot):
                    raise KeyError(f"lookup of slot {slot} has no static value")
        return total

    def bounds(self, box: Mapping[str, Interval]) -> tuple[int, int, bool]:
        """Inclusive bounds over a box, and whether they are attained (exact).

        Exact when every variable occurs in one term and each // or % argument is itself exact
        (a % whose argument crosses a multiple is widened to [0, divisor-1], still attained when the
        argument sweeps at least one whole period).
        """
        low = high = self.const
        exact = True
        seen: set[str] = set()
        for atom, c in self.terms:
            match atom:
                case Var(name):
                    lo, hi = box[name]
                    ok = name not in seen
                    seen.add(name)
                case FloorDiv(arg, divisor):
                    lo, hi, ok = arg.bounds(box)
                    lo, hi = lo // divisor, hi // divisor
                    ok = ok and seen.isdisjoint(arg.variables())
                    seen.update(arg.variables())
                case Mod(arg, divisor):
                    lo, hi, ok = arg.bounds(box)
                    if lo // divisor == hi // divisor:
                        lo, hi = lo % divisor, hi % divisor
                    else:
                        ok = ok and _sweeps_unit_steps(arg) and hi - lo + 1 >= divisor
                        lo, hi = 0, divisor - 1
                    ok = ok and seen.isdisjoint(arg.variables())
                    seen.update(arg.variables())
                case Lookup(slot):
                    raise KeyError(f"lookup of slot {slot} has no static bounds")
            exact = exact and ok
            low += c * (lo if c > 0 else hi)
            high += c * (hi if c > 0 else lo)
        return low, high, exact

    def within(self, box: Mapping[str, Interval]) -> Affine:
        """Simplify // and % using the variables' inclusive ranges (unknown variables: no help)."""
        result = Affine((), self.const)
        for atom, c in self.terms:
            part = Affine(((atom, 1),), 0)
            if isinstance(atom, (FloorDiv, Mod)):
                arg = atom.arg.within(box)
                part = (
                    arg.floordiv(atom.divisor)
                    if isinstance(atom, FloorDiv)
                    else arg.mod(atom.divisor)
                )
                if isinstance(atom, FloorDiv):
                    part = _floordiv_within(arg, atom.divisor, box)
                if not arg.has_lookup and all(v in box for v in arg.variables()):
                    low, high, _ = arg.bounds(box)
                    digit = low // atom.divisor
                    if digit == high // atom.divisor:
                        part = (
                            Affine((), digit)
                            if isinstance(atom, FloorDiv)
                            else arg - digit * atom.divisor
                        )
            result = result + part * c
        return result

    def __str__(self) -> str:
        parts: list[str] = []
        for atom, c in self.terms:
            match atom:
                case Var(name):
                    text = name
                case FloorDiv(arg, divisor):
                    text = f"({arg})//{divisor}"
                case Mod(arg, divisor):
                    text = f"({arg})%{divisor}"
                case Lookup(slot):
                    text = f"@{slot}"
            parts.append(text if c == 1 else f"{c}*{text}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def _floordiv_within(arg: Affine, divisor: int, box: Mapping[str, Interval]) -> Affine:
    """arg // divisor, where (g*A + r) // (g*d) == A // d because 0 <= r < g on the box."""
    steps = sorted({gcd(divisor, c) for _, c in arg.terms} - {1}, reverse=True)
    for step in steps:
        whole = tuple((a, c // step) for a, c in arg.terms if c % step == 0)
        rest = _make(tuple((a, c) for a, c in arg.terms if c % step != 0), arg.const % step)
        if rest.has_lookup or any(v not in box for v in rest.variables()):
            continue
        low, high, _ = rest.bounds(box)
        if low >= 0 and high < step:
            return _make(whole, arg.const // step).floordiv(divisor // step)
    return arg.floordiv(divisor)


def _sweeps_unit_steps(expr: Affine) -> bool:
    return len(expr.terms) == 1 and abs(expr.terms[0][1]) == 1 and isinstance(expr.terms[0][0], Var)


def _make(terms: tuple[tuple[Atom, int], ...], const: int) -> Affine:
    plain: dict[str, tuple[Var, int]] = {}
    for atom, c in terms:
        if not isinstance(atom, Var):
            break
        name = atom.name
        plain[name] = atom, c + plain[name][1] if name in plain else c
    else:  # most are: neither hashes of atoms nor keys of parts
        return Affine(tuple([plain[name] for name in sorted(plain) if plain[name][1]]), const)
    merged: dict[Atom, int] = {}
    for atom, c in terms:
        merged[atom] = merged.get(atom, 0) + c
    kept = [(a, c) for a, c in merged.items() if c != 0]
    # d * (x // d) + x % d == x: re-joins what a reshape split, so layout round trips cancel
    for atom, c in kept:
        if isinstance(atom, Mod):
            quotient = atom.arg.floordiv(atom.divisor) * (c * atom.divisor)
            digits = [(a, k) for a, k in quotient.terms if not isinstance(a, Var)]
            if digits and all(merged.get(a, 0) == k for a, k in digits):
                rest = tuple((a, k) for a, k in kept if a != atom)
                return _make(rest, const) - quotient + atom.arg * c
    if len(kept) > 1:
        kept.sort(key=lambda item: _atom_key(item[0]))
    return Affine(tuple(kept), const)


def var(name: str) -> Affine:
    """The expression `name`."""
    return Affine(((Var(name), 1),), 0)


def const(value: int) -> Affine:
    """The constant expression `value`."""
    return Affine((), value)
