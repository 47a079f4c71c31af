"""The web pages: what a browser is shown of jobs, their layers, machines and comparisons.

In: plain values of records, and documents that jobs wrote (which may have any shape).  Out: HTML,
and compact rows for the scripts in `static/`.  Must not know HTTP, the database, or any stage of
the compiler; `service/api/routes/pages.py` serves what is made here.
"""
