"""Preflight in a process of its own: a request on stdin, findings or a problem on stdout.

The API starts it, because the API process must neither import ONNX nor trust a model.  The limits
are set here, before anything of the model is read.

    python -m worker.preflight_child < request.json
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from worker.compiler.errors import CompilerError
from worker.compiler.options import CompileOptions

REFUSED = 1


def main() -> int:
    """Answer one request; the exit status is 1 when the answer is a problem document."""
    request = json.load(sys.stdin)
    memory, seconds = int(request["memory_bytes"]), int(request["cpu_s"])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        from worker.preflight import preflight

        answer = preflight(
            Path(request["model"]),
            request["hardware"],
            CompileOptions.from_json(request["options"]),
        )
    except CompilerError as error:
        sys.stdout.write(json.dumps(error.to_problem()))
        return REFUSED
    except MemoryError:
        refusal = CompilerError(
            "TW-SVC-009", f"preflight needs more than {memory} bytes", limit=memory
        )
        sys.stdout.write(json.dumps(refusal.to_problem()))
        return REFUSED
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
