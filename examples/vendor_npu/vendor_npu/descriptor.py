"""What Tilewright reads before anything is compiled: keep numpy and the code out of here."""

from __future__ import annotations

from worker.compiler.vendors import EngineDescriptor, OracleDescriptor, SerializerDescriptor

SERIALIZER = SerializerDescriptor(
    name="vendor_npu",
    version="1.1",
    help="instructions of the invented NPU, with its constants",
    implementation="vendor_npu.encode:encode",
    format="vnpu",
    format_version=1,
)
ENGINE = EngineDescriptor(
    name="vendor_npu_sim",
    version="1.1",
    help="functional and cycle simulator of the invented NPU, in C",
    implementation="vendor_npu.engine:opened",
    format="vnpu",
    format_versions=(1,),
)
ORACLE = OracleDescriptor(
    name="vendor_npu_cycles",
    version="1.1",
    help="cycles of the invented NPU's array, by its simulator",
    implementation="vendor_npu.engine:call_cycles",
)
