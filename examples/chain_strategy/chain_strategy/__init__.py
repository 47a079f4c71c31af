"""A strategy for Tilewright in a package of its own; copy it to begin yours."""
