"""Composites: matching patterns of a spec in a model, and explaining why not."""
