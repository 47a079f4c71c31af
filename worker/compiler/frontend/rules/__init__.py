"""What an operator's definition forbids, as tables: node in, problems out.

Axes, counts, signs, constant indices, enumerations: all that ONNX's own inference lets pass.  Rules
read attributes, types, shapes and constants of one node; they know no pass, target or option.
"""
