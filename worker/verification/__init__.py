"""Verification by execution: seeded inputs, the ONNX Runtime reference, the comparison's driver.

In: the user's original model file and a CompiledModel.  Out: a Verification for the report.
Must not know jobs, databases or HTTP.
"""
