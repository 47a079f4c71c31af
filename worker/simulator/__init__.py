"""Simulated execution of lowered programs: time, traffic, occupancy, energy, bounds.

In: `UnitProgram` / `Program` and a `Machine`.  Out: `UnitSimulation` / `ModelSimulation`, a trace.
Must not know ONNX, strategies, the cost model, files or the service: it judges what they made.
"""
