"""When every instruction of a program starts: what lowering weighs and the simulator reports."""
