"""Networks as nn_dataflow has them, layer by layer: (name, layer, times).

Sizes are those of its `nns`; two halves of a grouped convolution are two layers; MobileNet (v1),
which it has not, with depthwise convolutions as regions of 3 x 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from benchmarks.rivals.row_stationary import Layer

Net = list[tuple[str, Layer, int]]


def conv(channels: int, filters: int, size: int, window: int, stride: int = 1) -> Layer:
    """A convolution with a square output."""
    return Layer(channels, filters, (size, size), (window, window), stride)


def full(channels: int, filters: int, window: int = 1) -> Layer:
    """A fully connected layer."""
    return conv(channels, filters, 1, window)


def pool(channels: int, size: int, window: int, stride: int = 0) -> Layer:
    """A pool, or a depthwise convolution."""
    return Layer(
        channels, channels, (size, size), (window, window), stride or window, is_region=True
    )


def added(channels: int, size: int, inputs: int = 2) -> Layer:
    """A sum or product of tensors."""
    return Layer(channels, channels, (size, size), (1, 1), is_region=True, inputs=inputs)


def alex_net() -> Net:
    return [
        ("conv1", conv(3, 48, 55, 11, 4), 2), ("pool1", pool(48, 27, 3, 2), 2),
        ("conv2", conv(48, 128, 27, 5), 2), ("pool2", pool(128, 13, 3, 2), 2),
        ("conv3", conv(256, 192, 13, 3), 2), ("conv4", conv(192, 192, 13, 3), 2),
        ("conv5", conv(192, 128, 13, 3), 2), ("pool3", pool(128, 6, 3, 2), 2),
        ("fc1", full(256, 4096, 6), 1), ("fc2", full(4096, 4096), 1), ("fc3", full(4096, 1000), 1),
    ]  # fmt: skip


def mlp_l() -> Net:
    sizes = (784, 1500, 1000, 500, 10)
    return [(f"fc{k + 1}", full(a, b), 1) for k, (a, b) in enumerate(pairwise(sizes))]


def lstm_gnmt() -> Net:
    """Four cells: a candidate and three gates, and what is multiplied and added between them."""
    return [
        ("gates", full(2000, 1000), 16), ("products and sums", added(1000, 1), 16),
        ("Wd", added(1000, 1, 1), 1),
    ]  # fmt: skip


def vgg_net() -> Net:
    net, channels, size = [], 3, 224
    for block, (filters, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        for k in range(count):
            net.append((f"conv{block + 1}_{k + 1}", conv(channels, filters, size, 3), 1))
            channels = filters
        size //= 2
        net.append((f"pool{block + 1}", pool(channels, size, 2), 1))
    net += [("fc1", full(512, 4096, 7), 1), ("fc2", full(4096, 4096), 1)]
    return [*net, ("fc3", full(4096, 1000), 1)]


def resnet50() -> Net:
    net = [("conv1", conv(3, 64, 112, 7, 2), 1), ("pool1", pool(64, 56, 3, 2), 1)]
    before = 64
    for stage, (narrow, size, count) in enumerate(
        ((64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3)), start=2
    ):
        wide, stride = 4 * narrow, 1 if stage == 2 else 2
        net += [
            (f"conv{stage}_0_a", conv(before, narrow, size, 1, stride), 1),
            (f"conv{stage}_a", conv(wide, narrow, size, 1), count - 1),
            (f"conv{stage}_b", conv(narrow, narrow, size, 3), count),
            (f"conv{stage}_c", conv(narrow, wide, size, 1), count),
            (f"conv{stage}_br", conv(before, wide, size, 1, stride), 1),
            (f"conv{stage}_res", added(wide, size), count),
        ]
        before = wide
    return [*net, ("pool5", pool(2048, 1, 7), 1), ("fc", full(2048, 1000), 1)]


def googlenet() -> Net:
    net = [
        ("conv1", conv(3, 64, 112, 7, 2), 1), ("pool1", pool(64, 56, 3, 2), 1),
        ("conv2_reduce", conv(64, 64, 56, 1), 1), ("conv2", conv(64, 192, 56, 3), 1),
        ("pool2", pool(192, 28, 3, 2), 1),
    ]  # fmt: skip
    for name, size, channels, one, reduced3, three, reduced5, five, projected in (
        ("3a", 28, 192, 64, 96, 128, 16, 32, 32), ("3b", 28, 256, 128, 128, 192, 32, 96, 64),
        ("4a", 14, 480, 192, 96, 208, 16, 48, 64), ("4b", 14, 512, 160, 112, 224, 24, 64, 64),
        ("4c", 14, 512, 128, 128, 256, 24, 64, 64), ("4d", 14, 512, 112, 144, 288, 32, 64, 64),
        ("4e", 14, 528, 256, 160, 320, 32, 128, 128), ("5a", 7, 832, 256, 160, 320, 32, 128, 128),
        ("5b", 7, 832, 384, 192, 384, 48, 128, 128),
    ):  # fmt: skip
        net += [
            (f"{name}_1x1", conv(channels, one, size, 1), 1),
            (f"{name}_3x3_reduce", conv(channels, reduced3, size, 1), 1),
            (f"{name}_3x3", conv(reduced3, three, size, 3), 1),
            (f"{name}_5x5_reduce", conv(channels, reduced5, size, 1), 1),
            (f"{name}_5x5", conv(reduced5, five, size, 5), 1),
            (f"{name}_proj", conv(channels, projected, size, 1), 1),
        ]
    return [
        *net, ("pool3", pool(480, 14, 3, 2), 1), ("pool4", pool(832, 7, 3, 2), 1),
        ("pool5", pool(1024, 1, 7), 1), ("fc", full(1024, 1000), 1),
    ]  # fmt: skip


def mobilenet() -> Net:
    net, channels, size = [("conv1", conv(3, 32, 112, 3, 2), 1)], 32, 112
    for k, (filters, stride) in enumerate(
        ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2),
         (1024, 1))
    ):  # fmt: skip
        size //= stride
        net.append((f"dw{k + 1}", pool(channels, size, 3, stride), 1))
        net.append((f"pw{k + 1}", conv(channels, filters, size, 1), 1))
        channels = filters
    return [*net, ("pool", pool(1024, 1, 7), 1), ("fc", full(1024, 1000), 1)]


NETS: Mapping[str, Callable[[], Net]] = {
    "mlp_l": mlp_l, "lstm_gnmt": lstm_gnmt, "alex_net": alex_net, "mobilenet": mobilenet,
    "resnet50": resnet50, "googlenet": googlenet, "vgg_net": vgg_net,
}  # fmt: skip
