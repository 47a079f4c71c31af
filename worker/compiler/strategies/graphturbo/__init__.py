"""graphturbo: sub-graph instances that keep tensors in local memory, across layers and blocks.

In: a region of TensorOps.  Out: units of many layers whose intermediate tensors stay in the local
buffer of a core (LB) or in the global buffer of a cluster (GB); one instance is one kernel.
Source: GraphTurbo (OSDI'23); the rooms below follow its sections 3 and 4.
"""
