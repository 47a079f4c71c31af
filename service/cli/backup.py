"""`backup` and `restore`: a whole store in one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import DataDirOption, load_settings, quiet_logs
from service.cli.exits import Exit
from service.cli.output import JsonFlag, note, print_json, print_text

if TYPE_CHECKING:
    from service.store.backup import Copied

_MOST_NAMED = 10
FileArgument = Annotated[Path, typer.Argument(help="The backup, a tar archive.", dir_okay=False)]


def backup(file: FileArgument, data_dir: DataDirOption = None, as_json: JsonFlag = False) -> None:
    """Copy database and content into a new file, while the service may run.

    Works on the data directory, or what TILEWRIGHT_DATABASE_URL and _BLOB_URL name.  Exits with 5
    when content is lost: the rest is in the backup.
    """
    from service.bootstrap import open_services
    from service.store.backup import write_backup

    quiet_logs()
    services = open_services(load_settings(data_dir))
    try:
        copied = write_backup(services.settings, services.database, services.blobs, file.absolute())
    finally:
        services.close()
    _say(copied, {"file": str(file)}, "in the backup", as_json=as_json)


def restore(file: FileArgument, data_dir: DataDirOption = None, as_json: JsonFlag = False) -> None:
    """Fill an empty data directory, or an empty database, from a backup.

    Jobs that ran when it was made are queued again, without having lost an attempt.
    """
    from service.bootstrap import open_services
    from service.jobs.reconcile import reset_after_restore
    from service.store.backup import restore_backup
    from worker.runner.main import DataDirectory

    quiet_logs()
    services = open_services(load_settings(data_dir))
    directory = DataDirectory(services.settings)
    try:
        directory.lock()
        copied = restore_backup(services.settings, services.blobs, file)
        queued = reset_after_restore(services.database)
    finally:
        directory.unlock()
        services.close()
    _say(copied, {"queued_again": queued}, "restored", as_json=as_json)


def _say(copied: Copied, more: dict[str, Any], what: str, *, as_json: bool) -> None:
    """What was copied; ends the command with an error where content is lost."""
    if as_json:
        print_json({"blobs": copied.blobs, "size_bytes": copied.size_bytes,
                    "lost": list(copied.lost), "schema": copied.revision, **more})  # fmt: skip
    else:
        print_text(f"{copied.blobs} files of {copied.size_bytes} bytes are {what}, with the "
                   f"database of schema {copied.revision}")  # fmt: skip
        if queued := more.get("queued_again"):
            print_text(f"{queued} jobs that were running are queued again")
    if copied.lost:
        note(f"{len(copied.lost)} files are lost or damaged in the store:")
        for digest in copied.lost[:_MOST_NAMED]:
            note(f"  sha256:{digest}")
        raise typer.Exit(Exit.SERVICE)
