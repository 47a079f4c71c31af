"""Tiling: sizes of tiles, and the boxes they touch; a library for strategies.

In: operators and candidate tile extents.  Out: spans, widths, candidate sizes.  Must not know
strategies: nothing here decides.
"""
