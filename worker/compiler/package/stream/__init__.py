"""`regions/<k>/stream.bin`: a region as a program that can be executed from its bytes alone.

In: a `RegionCode` (programs, tasks, entries).  Out: bytes, text, the C header, the page's tables.
`records.py` is the one place that says how the bytes lie; everything else is made from it.
It must not know how schedules came about, nor who executes streams.
"""
