"""The reference interpreter of streams: obvious rather than fast.

In: the bytes of a region's stream, its constants and inputs.  Out: outputs, bit for bit what the C
kernels give, and what passed every port.  It must not know schedules, graphs or how programs are
made: what it cannot find in the stream is missing there.
"""
