"""What a server carries: reads, streams, uploads, submits, jobs and sweeps, and many workers.

`python -m benchmarks.load` measures it and writes `benchmarks/LOAD.md`.
"""
