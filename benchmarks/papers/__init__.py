"""Tables of the papers beside ours, one module a paper."""
