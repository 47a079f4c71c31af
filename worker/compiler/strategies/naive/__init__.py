"""The baseline strategy: one operator at a time, output tiles that fit, operands streamed."""
