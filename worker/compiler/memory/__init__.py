"""Tensors over time in memories of limited size: liveness, spills, addresses."""
