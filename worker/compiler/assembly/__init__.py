"""From a compiled model to what bundles and runs are made of."""
