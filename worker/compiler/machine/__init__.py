"""The machine: hardware documents in, frozen `Machine` values out.

In: YAML or JSON documents (the user's, or the shipped presets), with inheritance and evidence tags.
Out: `Machine`, findings with JSON pointers, a digest, the JSON schema.  Must not know models,
schedules, strategies, files outside this package, or the service.
"""

from worker.compiler.machine.build import canonical_document, load_machine, load_preset
from worker.compiler.machine.digest import (
    digest,
    document_digest,
    machine_document,
    machine_of,
)
from worker.compiler.machine.lint.document import lint_document
from worker.compiler.machine.machine import Machine
from worker.compiler.machine.parse import parse_document
from worker.compiler.machine.presets import preset_document, preset_names, preset_rows
from worker.compiler.machine.schema import spec_json_schema

__all__ = [
    "Machine",
    "canonical_document",
    "digest",
    "document_digest",
    "lint_document",
    "load_machine",
    "load_preset",
    "machine_document",
    "machine_of",
    "parse_document",
    "preset_document",
    "preset_names",
    "preset_rows",
    "spec_json_schema",
]
