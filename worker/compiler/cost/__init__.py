"""Cost: work, traffic, lower bounds and capacity fits, predicted from operators and schedules.

In: operators, schedule trees, a Machine.  Out: cycles, bytes, picojoules, or a Shortfall.  Must not
know strategies, lowering or the simulator (the model predicts; the simulator measures).
"""
