"""Other cost models on the exported loop nests, each in an environment of its own."""
