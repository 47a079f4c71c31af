"""How many samples a cluster takes at a time in the paper's baseline (Table 2, TVM)."""

from __future__ import annotations


def tvm_samples(peak_bytes_per_sample: int, gb_bytes: int) -> int:
    """Samples per cluster of the layer-wise baseline: largest power of two that fits, at least 1.

    Where not even one sample fits, one is still taken, as the paper's BERT-512 shows (Table 2: 1,
    with 9 MiB live in 8 MiB), and the rest goes through home.

    Raises:
        ValueError: sizes that are not positive.
    """
    if peak_bytes_per_sample < 1 or gb_bytes < 1:
        raise ValueError(f"{peak_bytes_per_sample} bytes per sample in {gb_bytes} bytes")
    fitting = gb_bytes // peak_bytes_per_sample
    return 1 << (fitting.bit_length() - 1) if fitting else 1
