"""A bundle as a shared library for users' applications: C interface and ONNX Runtime operator.

In: an opened bundle.  Out: C sources (kernels, regions, tables, weights, runtime), or the library
that they make.  The runtime is C in this folder; its interface is tilewright.h.  Must not know how
a bundle is made, and runs nothing: executor.py does that for the service.
"""
