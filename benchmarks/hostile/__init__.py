"""Hostile inputs by the thousand: mutated models, specs, bundles and requests.

`python -m benchmarks.hostile` runs them all; each module makes and judges one kind.  What counts as
a fault is in `child.FAULTS`.
"""
