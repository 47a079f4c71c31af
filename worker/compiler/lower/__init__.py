"""Lowering: a schedule tree becomes a program with addresses, an order and tokens.

In: a verified Schedule, a Machine; for a whole model, the lives of its tensors.  Out: a UnitProgram
with planned buffers and operands; a HomeMap with one address per tensor in the home arena.  Must
not know which strategy made the schedule, nor how a simulator or a kernel uses the program.
Reading order: lower, nest, resolve, issue, layers (pace), buffers (liveness, allocate), emit
(emit_compute, carry, grid, fold), sync (storage, hazards), memory_map.
"""
