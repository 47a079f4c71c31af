"""A starting point for a new accelerator: a commented spec, a vendor header, a conformance test.

In: a name.  Out: four files that work as written.  The templates are data files of this package.
"""
