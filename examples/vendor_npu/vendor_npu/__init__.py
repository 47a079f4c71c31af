"""An invented NPU: instructions of 64 bytes, NHWC, int8, integer requantisation, four cores."""
