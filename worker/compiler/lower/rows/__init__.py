"""Rows of a program in arrays, and the storages they touch."""
