# %% [markdown]
# # What would help this network on this chip?
#
# One model, one chip: compile, look, ask again for another objective, change one number of the
# chip, and run the compiled kernels.  Each `# %%` is a cell for editors and Jupyter (as a
# "percent" notebook); the whole also runs as a script:
#
#     python examples/explore_a_chip.py

# %%
import numpy as np
import onnxruntime
from make_tiny_cnn import build  # beside this file

import tilewright as tw

model = build()  # an onnx.ModelProto; a path or bytes do as well
chip = tw.Machine("kapla-edge")
print(chip.describe())

# %% [markdown]
# ## Compile
# The best program by simulated latency, its kernels checked against ONNX Runtime.  In a notebook
# the last line shows figures, the strategies that competed, and the slowest layers.

# %%
result = tw.compile(model, chip)
result

# %%
result.layers  # a pandas DataFrame where pandas is installed

# %%
slowest = max(result.rows, key=lambda row: row["cycles_total"])
print(f"{slowest['op_type']}: {slowest['pct_cycles']:.0f} % of {result.summary['latency_s']} s,")
print(f"bound by {slowest['bound_by']}")

# %% [markdown]
# ## Another objective
# The strategies compete again, on the same cache, for the least energy of the whole program.

# %%
frugal = tw.compile(model, chip, objective="energy", verify="none")
for program in frugal.strategies:
    print(program["name"], program["latency_cycles"], program["energy_pj"], program["reason"])

# %% [markdown]
# ## Another chip
# One field of the spec replaced, by a pointer whose lists know the names of their items.

# %%
wide = chip
for field in ("read_bytes_per_cycle", "write_bytes_per_cycle"):
    wide = wide.with_field(f"/levels/DRAM/{field}", 64.0, name="kapla-edge-wide")
faster = tw.compile(model, wide, verify="none")
gain = result.summary["latency_s"] / faster.summary["latency_s"]
print(f"with 64 bytes a cycle from DRAM it is {gain:.2f} times as fast")

# %% [markdown]
# ## Run
# The bundle's kernels on this machine, host parts in ONNX Runtime: the outputs by name.

# %%
x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
outputs = result.run({"image": x})
session = onnxruntime.InferenceSession(model.SerializeToString())
(expected,) = session.run(["probabilities"], {"image": x})
largest_error = float(np.abs(outputs["probabilities"] - expected).max())
print(f"largest difference from ONNX Runtime: {largest_error:.1e}")

# %% [markdown]
# ## Refusals
# Whatever is refused says what, where and what to do, under a code that stays.

# %%
try:
    tw.compile(model, "kapla-edgy")
except tw.SpecError as error:
    refused = error
    print(f"{error.code}: {error.message}; {error.remedy}")
