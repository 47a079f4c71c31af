"""The model that `tilewright demo` compiles; examples/make_tiny_cnn.py wrote it."""
