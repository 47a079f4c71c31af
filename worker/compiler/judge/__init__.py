"""The judge: every strategy's candidates for a model's units, the best of them, and one program.

In: a partitioned model and the strategies a user may have.  Out: `CompiledModel`.  Must not know
how schedules are made, nor the simulator: figures come in through `Ports`.
"""
