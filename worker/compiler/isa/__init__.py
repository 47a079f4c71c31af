"""Programs as arrays of instructions: the hand-over from lowering to packaging and simulation.

In: nothing.  Out: frozen program values, their legality and their text.  Must not know strategies.
"""
