"""What GraphTurbo prints in section 5: Tables 1 to 5 and the averages of its figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One model of Tables 2, 3 and 4."""

    label: str
    name: str
    stem: str
    """Our model's file."""
    batch: int
    tvm_samples: int
    """Samples per cluster of TVM ("batches per cluster")."""
    samples: int
    """Samples per cluster of GraphTurbo; `batch` is 4 clusters of them in every row."""
    unit: str
    tvm_throughput: float
    """`unit` per second."""
    tvm_ddr: int
    """TVM's tensors in DDR; it has none elsewhere."""
    scopes: tuple[int, int, int]
    """GraphTurbo's tensors in DDR, LLB, L1."""
    crafted: tuple[int, int, int] | None
    """The vendor's code."""
    compile_s: tuple[int, int, int]
    """TVM, AStitch, GraphTurbo."""


CLUSTERS = 4

ROWS = (
    PaperRow("A", "ResNet-50", "resnet50_v1_5", 64, 2, 16, "img/s", 1064, 58, (1, 11, 284),
             (1, 11, 291), (102, 66, 139)),
    PaperRow("B", "BERT-128", "bert_base_s128", 32, 4, 8, "sent/s", 512, 242, (1, 0, 305),
             (2, 0, 304), (159, 128, 199)),
    PaperRow("C", "BERT-256", "bert_base_s256_b4", 16, 2, 4, "sent/s", 412, 242, (1, 110, 240),
             (2, 25, 401), (170, 136, 224)),
    PaperRow("D", "BERT-384", "bert_base_qa_s384", 8, 1, 2, "sent/s", 36, 515, (1, 75, 967),
             (2, 49, 968), (312, 290, 699)),
    PaperRow("E", "BERT-512", "bert_base_s512", 8, 1, 2, "sent/s", 324, 242, (1, 76, 337),
             (2, 25, 474), (171, 143, 282)),
    PaperRow("F", "DLRM", "dlrm", 1024, 64, 256, "queries/s", 131_000, 76, (0, 0, 76),
             (1, 0, 75), (25, 22, 23)),
    PaperRow("G", "MobileNet-v2", "mobilenet_v2", 128, 2, 32, "img/s", 1416, 56, (1, 3, 608),
             (1, 7, 619), (74, 57, 248)),
    PaperRow("H", "Vision Transformer", "vit_base_patch16_224", 32, 4, 8, "img/s", 40, 214,
             (24, 60, 340), None, (189, 146, 340)),
    PaperRow("I", "DenseNet", "densenet121", 32, 4, 8, "img/s", 456, 247, (0, 3, 389), None,
             (173, 129, 189)),
    PaperRow("J", "Conformer", "conformer_m", 12, 1, 3, "sent/s", 184, 1054, (4, 813, 250), None,
             (382, 238, 296)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KneeRow:
    """One row of Table 1 (BERT-128)."""

    who: str
    batch: int
    rounds: int
    samples: int
    throughput: float
    """Sentences per second, as printed."""
    latency_ms: float


KNEE = (
    KneeRow("TVM", 8, 1, 2, 138, 6.79),
    KneeRow("TVM", 16, 1, 4, 512, 9.48),
    KneeRow("TVM", 32, 2, 4, 512, 18.96),
    KneeRow("TVM", 64, 4, 4, 512, 37.92),
    KneeRow("GraphTurbo", 8, 1, 2, 138, 6.79),
    KneeRow("GraphTurbo", 16, 1, 4, 512, 9.48),
    KneeRow("GraphTurbo", 32, 1, 8, 4052, 7.67),
    KneeRow("GraphTurbo", 64, 1, 16, 2716, 23.58),
    KneeRow("GraphTurbo", 64, 2, 8, 4052, 15.34),
    KneeRow("crafted", 32, 1, 8, 4048, 7.62),
)

GPU = {64: (0.99, 0.84, 0.83), 128: (1.88, 1.62, 1.50), 256: (3.51, 3.04, 2.83),
       512: (6.76, 5.83, 5.44)}  # fmt: skip
"""Table 5: batch -> milliseconds of TVM, CUTLASS fusion, graph scheduling."""

SPEEDUP_MEAN, ASTITCH_MEAN = 11.15, 6.16
"""Section 5.2: GraphTurbo over TVM, and over AStitch."""
SPEEDUP_KNOWN = {"A": 7.97, "B": 7.91}
"""Over TVM: the introduction's, and Table 1's 4052 over 512; the other bars are not printed."""
STEP_MEANS = {"v2 / TVM": 3.67, "v3 / v2": 2.20, "full / v3": 1.72}
"""Section 5.3."""
