"""The error catalogue."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.deps import Name
from service.api.schemas.service import ErrorCatalogAnswer, ErrorEntryAnswer
from service.errors import NotFound
from worker.compiler.error_catalog import ERROR_CATALOG, ErrorEntry

router = APIRouter(prefix="/v1/errors", tags=["errors"])


def _answer(entry: ErrorEntry) -> ErrorEntryAnswer:
    return ErrorEntryAnswer(
        code=entry.code,
        title=entry.title,
        fault=str(entry.fault),
        stage=entry.stage,
        status=entry.status,
        exit_code=entry.exit_code,
        remedy=entry.remedy,
    )


@router.get("", response_model=ErrorCatalogAnswer)
def list_errors() -> ErrorCatalogAnswer:
    """List every code that a problem document may carry."""
    return ErrorCatalogAnswer(items=[_answer(entry) for entry in ERROR_CATALOG.values()])


@router.get("/{code}", response_model=ErrorEntryAnswer)
def get_error(code: Name) -> ErrorEntryAnswer:
    """Explain one code."""
    entry = ERROR_CATALOG.get(code.upper())
    if entry is None:
        raise NotFound("no such error code", actual=code[:80])
    return _answer(entry)
