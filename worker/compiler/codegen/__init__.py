"""Kernels: a schedule tree with its planned buffers becomes one C function.

In: a Schedule and its UnitProgram (buffer addresses).  Out: C11 text that calls `tilewright_rt.h`.
Must not know which strategy made the schedule, and never uses a user's name as an identifier.
"""
