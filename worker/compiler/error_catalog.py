"""The closed list of error codes: what each means, whose fault it is, and what to do.

Codes are a promise: they are never reused and never change meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FAMILIES = {
    "MODEL": "The ONNX file",
    "SPEC": "The hardware spec",
    "OPT": "Options",
    "CAL": "Calibration",
    "TRAIN": "Training steps",
    "PLAN": "What does not fit",
    "UNSUP": "What is not supported",
    "SIM": "Simulation",
    "VERIFY": "Numerics",
    "RUN": "Bundles that are run",
    "LIB": "Bundles in applications",
    "PLUG": "Serializers and engines of vendors",
    "LINK": "Kernel libraries of vendors",
    "CMP": "Results to compare",
    "VALID": "Published figures",
    "DIRECTIVE": "Directives",
    "EXPORT": "Other cost models",
    "GATE": "The gate",
    "INT": "Faults of ours",
    "SVC": "The service",
    "CLI": "The command line",
    "NET": "The client's connection",
}
"""What codes are about, by the word in their middle."""


class Fault(StrEnum):
    USER = "user"
    SERVICE = "service"
    TRANSIENT = "transient"


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One code of the catalogue."""

    code: str
    title: str
    fault: Fault
    stage: str
    status: int
    """HTTP status when the API itself refuses."""
    exit_code: int
    """Exit code of the CLI (1-product.md: 3 input, 4 infeasible, 5 service)."""
    remedy: str


def _entries() -> tuple[ErrorEntry, ...]:
    user, service, transient = Fault.USER, Fault.SERVICE, Fault.TRANSIENT

    def e(
        code: str, title: str, fault: Fault, stage: str, status: int, exit_code: int, remedy: str
    ) -> ErrorEntry:
        return ErrorEntry(code, title, fault, stage, status, exit_code, remedy)

    # One row an entry reads better than one line a field.
    # fmt: off
    return (
        e("TW-MODEL-001", "The file is not an ONNX model", user, "ingest", 422, 3,
          "Upload the .onnx file the exporter wrote; `python -m onnx.checker` must accept it."),
        e("TW-MODEL-002", "The model file is truncated or empty", user, "ingest", 422, 3,
          "Upload the file again and compare its sha256 with the original."),
        e("TW-MODEL-003", "The model is larger than the limit", user, "ingest", 413, 3,
          "Raise the server's size limit, or move weights to external data in a zip bundle."),
        e("TW-MODEL-004", "The graph has a cycle", user, "ingest", 422, 3,
          "Export the model again: ONNX graphs must be acyclic."),
        e("TW-MODEL-005", "A node reads a tensor that nothing defines", user, "ingest", 422, 3,
          "Add the missing initializer or graph input, or export the model again."),
        e("TW-MODEL-006", "Tensor types or shapes contradict each other", user, "ingest", 422, 3,
          "Fix the node named here; its inputs do not satisfy the operator's definition."),
        e("TW-MODEL-007", "A dimension is out of range", user, "ingest", 422, 3,
          "Give every dimension a value from 1 to the limit shown."),
        e("TW-MODEL-008", "Unknown operator domain or operator", user, "ingest", 422, 4,
          "Understood are ai.onnx, ai.onnx.ml and com.microsoft.  Define others as functions in the"
          " model (FunctionProto), or under `operators` of the hardware spec."),
        e("TW-MODEL-009", "The opset or IR version is not supported", user, "ingest", 422, 3,
          "Export with an opset inside the range shown."),
        e("TW-MODEL-010", "External data is missing or points outside the bundle", user, "ingest",
          422, 3, "Upload a zip with the model and its data files side by side."),
        e("TW-MODEL-011", "The zip bundle is unsafe or damaged", user, "ingest", 422, 3,
          "Re-create the archive with plain, relative, unique file names, ordinarily compressed."),
        e("TW-MODEL-012", "A symbolic dimension has no value", user, "ingest", 422, 3,
          "Bind it, for example with --set batch=1."),
        e("TW-MODEL-013", "The graph is empty", user, "ingest", 422, 3,
          "Export a model with at least one node and one output."),
        e("TW-MODEL-014", "The graph is nested or sized beyond the limits", user, "ingest", 422, 3,
          "Flatten nested sub-graphs or split the model."),
        e("TW-MODEL-015", "A tensor's stored bytes do not match its type and shape", user,
          "ingest", 422, 3, "Export the model again; the initializer is damaged."),
        e("TW-MODEL-016", "A name is defined twice or is not valid", user, "ingest", 422, 3,
          "Every tensor must be produced exactly once; rename the duplicates."),
        e("TW-MODEL-017", "A tensor's shape cannot be determined", user, "simplify", 422, 3,
          "Bind the symbols it depends on with --set, or export with static shapes."),
        e("TW-MODEL-018", "A constant is not a finite number", user, "ingest", 422, 3,
          "Replace NaN or infinite constants in the attributes or quantisation scales named here."),
        e("TW-MODEL-019", "Folding constants would exceed the memory limit", user, "simplify",
          422, 3, "Shrink the constant named here; it expands to more bytes than allowed."),
        e("TW-MODEL-020", "The model has no such symbolic dimension", user, "ingest", 422, 3,
          "Use one of the symbols listed, or drop this --set."),
        e("TW-MODEL-021", "A node has what its operator does not allow", user, "ingest", 422, 3,
          "Give the attribute or constant named here a value that the limit shown allows."),
        e("TW-MODEL-022", "An operator is defined for another opset", user, "ingest", 422, 3,
          "Define it by operators of the model's opset, or convert the model to the definition's."),
        e("TW-SPEC-001", "The hardware spec is not valid", user, "ingest", 422, 3,
          "Fix the fields listed; `tilewright hardware schema` prints the schema."),
        e("TW-SPEC-002", "The hardware spec contradicts itself", user, "ingest", 422, 3,
          "Fix the fields listed; each says what it contradicts."),
        e("TW-SPEC-003", "Unknown hardware preset", user, "ingest", 404, 3,
          "`tilewright hardware ls` lists the presets."),
        e("TW-SPEC-004", "The hardware spec cannot be read", user, "ingest", 422, 3,
          "Give a YAML or JSON mapping in UTF-8."),
        e("TW-SPEC-005", "The energy table lacks what is asked of it", user, "ingest", 422, 3,
          "Name a component and action that the table lists, and a level or engine of the spec."),
        e("TW-OPT-001", "An option is not valid", user, "ingest", 422, 2,
          "See `tilewright compile --help` for the allowed values."),
        e("TW-OPT-002", "The cache lacks an entry that --require-cache demands", user, "schedule",
          409, 4, "Compile once without --require-cache to fill the cache."),
        e("TW-OPT-003", "The target has no such number format", user, "partition", 422, 4,
          "Choose one of the formats listed, or add a conversion to the spec."),
        e("TW-CAL-001", "The file is not an .npz of arrays", user, "partition", 422, 3,
          "Write it with numpy.savez: one array per model input."),
        e("TW-CAL-002", "The calibration arrays and the model's inputs have different names", user,
          "partition", 422, 3, "Name the arrays like the model's inputs, or input:0, input:1, ..."),
        e("TW-CAL-003", "A calibration array has another type or shape than its input", user,
          "partition", 422, 3, "Give arrays of the input's type and shape, samples stacked first."),
        e("TW-CAL-004", "A value to quantise is not finite", user, "partition", 422, 3,
          "Calibrate with inputs for which the node named here computes finite numbers."),
        e("TW-CAL-005", "The model cannot be run for calibration", user, "partition", 422, 4,
          "ONNX Runtime rejects the model or the arrays, or running it would take too much; the"
          " message says which."),
        e("TW-CAL-006", "A calibration sample holds NaN", user, "partition", 422, 3,
          "Leave the sample out, or mend it: ranges cannot be taken from what is not a number."),
        e("TW-TRAIN-001", "A quantised or 16-bit model cannot be trained", user, "train", 422, 3,
          "Give the float model: floats of 32 or 64 bits throughout."),
        e("TW-TRAIN-002", "The loss cannot be taken of this value", user, "train", 422, 3,
          "Name a float value of the model as output, and a new input as target."),
        e("TW-TRAIN-003", "Operators have no gradient", user, "train", 422, 4,
          "Replace the nodes named here, or freeze the initializers before them."),
        e("TW-TRAIN-004", "A parameter reaches the loss through integers only", user, "train", 422,
          3, "Freeze the initializers named here, or take the integers out of their way."),
        e("TW-TRAIN-005", "There is nothing to train", user, "train", 422, 3,
          "Name an output that float initializers lead to, and freeze fewer of them."),
        e("TW-PLAN-001", "The work does not fit the machine", user, "schedule", 422, 4,
          "Raise the resource named here to the demand shown."),
        e("TW-PLAN-002", "The search budget is used up", user, "schedule", 422, 4,
          "Simplify the model or the spec, or report it."),
        e("TW-PLAN-003", "No program is within the limits asked for", user, "schedule", 422, 4,
          "Raise --max-power-w or --max-latency-ms beyond the figures shown, try --effort thorough,"
          " or change the machine."),
        e("TW-UNSUP-001", "Operators fall back to the host", user, "partition", 422, 4,
          "Drop --fail-on-fallback, or declare the operators in the spec's capabilities."),
        e("TW-UNSUP-002", "The host cannot run this operator either", user, "partition", 422, 4,
          "Replace the operator named here."),
        e("TW-SIM-001", "The simulated program deadlocks", service, "simulate", 500, 5,
          "This is a bug in Tilewright: please report the job id."),
        e("TW-SIM-002", "A kernel accessed memory outside its buffer", service, "verify", 500, 5,
          "This is a bug in Tilewright: please report the job id."),
        e("TW-SIM-003", "A sanity invariant of the simulation is violated", service, "simulate",
          500, 5, "This is a bug in Tilewright: please report the job id."),
        e("TW-VERIFY-001", "The kernels' outputs differ from ONNX Runtime", service, "verify",
          500, 5, "This is a bug in Tilewright: please report the job id."),
        e("TW-VERIFY-002", "No C compiler was found for verification", user, "verify", 422, 5,
          "Install a C compiler (cc, gcc or clang), or compile with --verify none."),
        e("TW-VERIFY-003", "The reference cannot run the original model", user, "verify", 422, 4,
          "ONNX Runtime rejects the model; the message says why."),
        e("TW-VERIFY-004", "The inputs given for verification do not fit the model", user, "verify",
          422, 3, "Give one array per model input, with the name, type and shape listed."),
        e("TW-RUN-001", "The bundle is damaged or from another version", user, "run", 422, 3,
          "Download the bundle again."),
        e("TW-RUN-002", "The inputs do not match the bundle", user, "run", 422, 3,
          "Give one array per input with the name, shape and dtype listed."),
        e("TW-RUN-003", "A part of the model fails on the host", user, "run", 422, 4,
          "ONNX Runtime refuses the node named here, or its inputs: mend the model or the inputs."),
        e("TW-RUN-004", "The bundle has a format that this version does not read", user, "run", 422,
          3, "Compile the model again, or use the version that made the bundle."),
        e("TW-RUN-005", "A kernel of the bundle is not what its schedule gives", user, "run", 422,
          3, "Compile the model again. `run --trust` runs the text as it came, in the sandbox all"
          " the same."),
        e("TW-RUN-006", "The run ended without a result", user, "run", 422, 4,
          "The bundle's program crashed, hung or was over a limit: compile the model again, or"
          " raise the limit named."),
        e("TW-LIB-001", "The application has another tilewright.h", user, "library", 422, 3,
          "Compile the application with the tilewright.h that lies beside the library."),
        e("TW-LIB-002", "The library was compiled for another processor", user, "library", 422, 3,
          "Run `tilewright build` on the machine that runs the library, or compile the sources that"
          " `--sources` leaves for it."),
        e("TW-LIB-003", "The library was made from another bundle", user, "library", 422, 3,
          "Use the library and the host.onnx of one `tilewright build`."),
        e("TW-LIB-004", "The library is damaged", user, "library", 422, 3,
          "Run `tilewright build` again."),
        e("TW-LIB-005", "A value does not fit what the library was compiled for", user, "library",
          422, 3, "Give every input and output memory of the size and alignment that tw_input and"
          " tw_output tell, by its name."),
        e("TW-LIB-006", "Parts of the model run in ONNX Runtime only", user, "library", 422, 4,
          "Run host.onnx in ONNX Runtime with the library, or the regions one by one."),
        e("TW-LIB-007", "A kernel would have left its memory", user, "library", 422, 4,
          "Check the inputs that the model uses as indices; if they are right, build again."),
        e("TW-LIB-008", "The system has not enough memory for a session", user, "library", 422, 5,
          "Free memory, or keep fewer sessions at once."),
        e("TW-LIB-009", "The ONNX Runtime is too old for the library", user, "library", 422, 3,
          "Install ONNX Runtime 1.16 or newer."),
        e("TW-LIB-010", "The bundle cannot be built as a library", user, "library", 422, 4,
          "The message says what is missing; compile the model again with this version, or run the"
          " bundle with `tilewright run`."),
        e("TW-PLUG-001", "A named serializer, engine or oracle is not installed", user, "ingest",
          422, 3,
          "Install the package that brings it, or take `serializer` and `engine` out of the"
          " target, and give the instruction `cycles` in place of an `oracle`. A bundle runs"
          " without its engine with `tilewright run --engine kernels`."),
        e("TW-PLUG-002", "A serializer failed", user, "package", 422, 4,
          "Report it to the package named. Without `serializer` in the target, the region has the"
          " built-in formats."),
        e("TW-PLUG-003", "An engine failed", user, "run", 422, 4,
          "Report it to the package named. `tilewright run --engine kernels` does without it;"
          " without `engine` in the target, the compiled kernels are what is verified."),
        e("TW-PLUG-004", "An engine does not read what its regions are written in", user, "ingest",
          422, 3, "Name a `serializer` that writes the engine's format, or another engine."),
        e("TW-PLUG-005", "A region cannot be written in its target's format", user, "package", 422,
          4, "Take the operator out of the target's `ops`, or compile without --fail-on-fallback:"
          " the region then keeps the built-in formats and runs as compiled kernels."),
        e("TW-PLUG-006", "A cycle oracle failed", user, "ingest", 422, 4,
          "Report it to the package named. With `cycles`, a `formula` or a `table` in its place the"
          " instruction needs no oracle."),
        e("TW-LINK-001", "A file is no kernel library", user, "ingest", 422, 3,
          "Give the shared library that the vendor's `cc -shared` made of a source with"
          " TW_LIBRARY(name, version) of tilewright_rt.h in it."),
        e("TW-LINK-002", "A kernel library is for another processor", user, "ingest", 422, 3,
          "Give the library built for the processor that runs the kernels here, the host of the"
          " compile; what the chip itself runs is a serializer's to write."),
        e("TW-LINK-003", "A kernel library was built for another interface", user, "ingest", 422, 3,
          "Build it again with the tilewright_rt.h of this version (`tilewright backend init`"
          " writes it, and each bundle has it in `kernels/`)."),
        e("TW-LINK-004", "A kernel library lacks a function that kernels call", user, "package",
          422, 4, "Add the function, its name as the message says it, to the library; or take"
          " `call` out of the instruction that the pointer names."),
        e("TW-LINK-005", "A kernel library cannot be loaded, or broke its process", user, "verify",
          422, 4, "The message says what the loader or the system says; report it to the library's"
          " vendor. Without --link kernels run code of their own."),
        e("TW-LINK-006", "A bundle needs the kernel library that it was linked with", user, "run",
          422, 3, "Give that very file with --link, or compile again with the one that you have."
          " `--engine interpreter` needs none."),
        e("TW-LINK-007", "A kernel library is given and nothing calls it", user, "ingest", 422, 3,
          "Name its functions as `call` of instructions in the spec, or leave --link out."),
        e("TW-LINK-008", "Kernel libraries are not taken over HTTP", user, "ingest", 422, 3,
          "Compile with `tilewright compile --local --link PATH`: the library runs in the sandbox"
          " of your own machine."),
        e("TW-CMP-001", "The results cannot be compared", user, "compare", 422, 3,
          "Compile the model again with this version; the message says what it cannot read."),
        e("TW-CMP-002", "The job has no results to compare", user, "compare", 409, 3,
          "Name a job that succeeded; `tilewright jobs ls --state succeeded` lists them."),
        e("TW-VALID-001", "The file of published figures is not valid", user, "validate", 422, 3,
          "Fix the field that the pointer names, or leave it out where it may be."),
        e("TW-VALID-002", "No published figure has this name", user, "validate", 404, 2,
          "`tilewright validate --list` prints the names."),
        e("TW-DIRECTIVE-001", "Directives do not say a schedule", user, "explain", 422, 2,
          "The finding names the line and what does not fit; `tilewright export --to directives`"
          " writes the layer's own, to begin with."),
        e("TW-EXPORT-001", "No kernel has a form in the other cost model", user, "export", 422, 4,
          "Each finding says what has no form there. A strategy that gives every operator a kernel"
          " of its own has the most; --precision and --hardware decide how tiles fill the array."),
        e("TW-INT-001", "Internal error", service, "report", 500, 5,
          "This is a bug in Tilewright: please report the job id."),
        e("TW-INT-002", "A compiler stage produced an illegal value", service, "schedule", 500, 5,
          "This is a bug in Tilewright: please report the job id."),
        e("TW-INT-003", "A compiler pass broke its contract", service, "simplify", 500, 5,
          "This is a bug in Tilewright: please report the job id."),
        e("TW-INT-004", "No strategy has a kernel for an operator", service, "schedule", 500, 5,
          "This is a bug in Tilewright: please report the job id. The nodes named run on the host"
          " with a spec that does not offload their operator."),
        e("TW-INT-005", "A host part fails where the whole model runs", service, "verify", 500, 5,
          "This is a bug in Tilewright: please report the job id."),
        e("TW-INT-006", "An installed strategy cannot be loaded", service, "schedule", 500, 5,
          "Reinstall or remove the package that brings the strategy, or name another one."),
        e("TW-GATE-001", "The gate file is not valid", user, "gate", 422, 3,
          "Fix the lines listed; `tilewright gate schema` has every field."),
        e("TW-GATE-002", "A baseline cannot be written", user, "gate", 422, 3,
          "Mend what cannot be compiled first: a baseline has every model on every chip."),
        e("TW-GATE-003", "The comment cannot be written", user, "gate", 502, 5,
          "Check the token's rights and the address of the API; the gate's verdict stands."),
        e("TW-SVC-001", "Not found", user, "service", 404, 3, "Check the id."),
        e("TW-SVC-002", "The request conflicts with the current state", user, "service", 409, 3,
          "Fetch the current state and try again."),
        e("TW-SVC-003", "The request body is too large", user, "service", 413, 3,
          "Stay below the limit shown."),
        e("TW-SVC-004", "The request is malformed", user, "service", 422, 2,
          "Fix the fields listed."),
        e("TW-SVC-005", "The service is temporarily unavailable", transient, "service", 503, 5,
          "Try again after the time in Retry-After."),
        e("TW-SVC-006", "The job used up its attempts", service, "service", 500, 5,
          "The worker died repeatedly on this job: see its logs, then retry with `jobs clone`."),
        e("TW-SVC-007", "The job was canceled", user, "service", 409, 7, "Clone the job to rerun."),
        e("TW-SVC-008", "The job ran out of time", user, "service", 504, 6,
          "Raise the job's time limit, or compile a smaller model."),
        e("TW-SVC-009", "The stage exceeded its memory limit", user, "service", 422, 4,
          "Use a smaller model, external data, or a worker with more memory."),
        e("TW-SVC-010", "Idempotency-Key was used with another body", user, "service", 422, 3,
          "Use a new key for a new request."),
        e("TW-SVC-011", "A quota is used up", user, "service", 429, 5,
          "Wait for running jobs to end."),
        e("TW-SVC-012", "The upload does not match its declared digest or length", user,
          "service", 422, 3, "Upload the file again."),
        e("TW-SVC-013", "Method or media type not supported", user, "service", 415, 2,
          "See /openapi.json."),
        e("TW-SVC-014", "The requested range does not exist", user, "service", 416, 3,
          "Ask for bytes inside the size shown."),
        e("TW-SVC-015", "The job has not produced this yet", user, "service", 409, 3,
          "Wait for the stage that writes it; GET the job shows its state."),
        e("TW-SVC-016", "The server does not serve this name or page", user, "service", 403, 2,
          "Use the server's own name; others are listed in TILEWRIGHT_ALLOWED_HOSTS."),
        e("TW-SVC-017", "The job wrote more than its limit of file bytes", user, "service", 422, 4,
          "Use a smaller model, or raise TILEWRIGHT_FILE_LIMIT_BYTES."),
        e("TW-SVC-018", "The isolation asked for does not work here", service, "service", 500, 5,
          "Install bubblewrap 0.8 or newer and allow user namespaces, or set"
          " TILEWRIGHT_ISOLATION=auto; `tilewright doctor` says what holds then."),
        e("TW-SVC-019", "An API key is needed", user, "service", 401, 2,
          "Send `Authorization: Bearer KEY`; the command line and clients take it from"
          " TILEWRIGHT_KEY.  `tilewright keys create` makes one."),
        e("TW-SVC-020", "The API key does not allow this", user, "service", 403, 2,
          "Ask whoever keeps the server's keys for one with the scope that is named."),
        e("TW-SVC-021", "Too many requests", transient, "service", 429, 5,
          "Wait as long as Retry-After says; RateLimit tells beforehand what is left.  Whoever runs"
          " the server sets TILEWRIGHT_KEY_RATE, TILEWRIGHT_PROJECT_RATE, and rates of their own."),
        e("TW-SVC-030", "The disk is full", transient, "service", 503, 5,
          "Make room where the data directory is; jobs of a server wait for it and go on."),
        e("TW-SVC-031", "A program that it runs was killed", transient, "service", 503, 5,
          "Give the machine more memory, or fewer workers; jobs of a server are tried again."),
        e("TW-CLI-001", "A file cannot be read or written", user, "client", 422, 3,
          "Check the path and its permissions."),
        e("TW-CLI-002", "The address cannot be listened on", user, "client", 409, 5,
          "Choose another --port, or 0 for a free one."),
        e("TW-CLI-004", "An optional package is not installed", user, "client", 422, 2,
          "Install the extra that is named."),
        e("TW-CLI-005", "The host's rates cannot be measured", user, "client", 422, 4,
          "Measure while other programs are quiet, with no more --threads than the machine has."),
        e("TW-NET-001", "The server cannot be reached", transient, "client", 503, 5,
          "Check the URL and that `tilewright serve` runs."),
    )
    # fmt: on


ERROR_CATALOG: dict[str, ErrorEntry] = {entry.code: entry for entry in _entries()}
