"""The version of the binary stream; apart, since descriptors name it and load no numpy."""

STREAM_VERSION = 3
