"""A payload that compiles well and poisons the cache for whoever compiles the same next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worker.compiler.cache import Cache, CacheKey, CacheKind
from worker.compiler.judge.units import decode_unit, encode_unit
from worker.job.job import run_job
from worker.job.request import JobOutcome, JobRequest, ProgressSink


class _Planter:
    """Stores other values than the compiler made, under their keys, and some of its own."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def get(self, key: CacheKey) -> bytes | None:
        del key
        return None

    def put(self, key: CacheKey, value: bytes) -> None:
        if key.kind is CacheKind.PROGRAM and value.startswith(b"TWPROG"):
            program = decode_unit(value)
            rows = program.instructions.copy()
            rows["dst_offset"] = 1 << 40  # it reads well
            value = encode_unit(replace(program, instructions=rows))
        else:
            value = value[: len(value) // 2]
        self._cache.put(key, value)


def plants(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """A real compile that poisons the cache for whoever compiles the same next."""
    return run_job(request, out_dir, _Planter(cache), progress)
