"""Layout transforms and constant pre-packing on the operator algebra."""
