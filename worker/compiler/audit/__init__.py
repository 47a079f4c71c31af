"""The audit of a lowered program: it does what its schedule says, in an order that protects it.

In: a verified Schedule, the UnitProgram lowered from it, the Machine.  Out: nothing, or the first
fault as a VerifyError.  Must not know lowering: storage, slots, cores and clipping are decided
again here, from the meaning of schedule trees (`schedule.nodes`) and of programs (`isa.program`).
Reading order: audit, storage, parts, expected, accesses, sets, tables, wanted, match, walk,
clockwork; few_cores, translated.
"""
