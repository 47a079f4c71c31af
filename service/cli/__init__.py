"""The `tilewright` command: one file a verb group, over the SDK or, with --local, the worker.

Comes in: a command line.  Goes out: data on stdout (text or the API's JSON), chatter on stderr,
and one of the exit codes of `exits.py`.  Modules here import only the standard library and Typer at
the top, so that `--help` starts at once; everything heavy is imported by the verb that needs it.
"""
