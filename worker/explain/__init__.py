"""A layer explained: the loop nest that runs, what its cycles go to, and what twice as much brings.

In: the schedule of a kernel, its machine, the options it was compiled with.  Out: plain data
(`layer.Explanation`).  Must not know bundles, how jobs run, or who asks.
"""
