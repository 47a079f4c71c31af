"""Other searches for mappings, as baselines: nothing of the product is built on them."""
