"""Every exception that a verb may let through becomes one explained failure and one exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from service.cli.exits import Exit
from service.cli.output import note, print_json, print_problem, wants_json


class TilewrightGroup(TyperGroup):
    """The root command: runs a verb and turns its failure into the contract's exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen verb.

        Raises:
            typer.Exit: with the code of exits.py when the verb failed.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            note("interrupted")
            raise typer.Exit(Exit.CANCELED) from error
        except BrokenPipeError as error:
            # The reader of our pipe went away; stop Python from flushing into it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.OK) from error
        except Exception as error:  # the task boundary of the command line
            if isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "show"):
                raise  # Typer's own: it prints usage errors and ends with their code
            problem = problem_of(error)
            if problem is None:
                traceback.print_exc()
                problem = Failure("TW-INT-001", f"{type(error).__name__}: {error}").to_problem()
            if wants_json(ctx):
                print_json(problem)
            print_problem(problem)
            raise typer.Exit(exit_code_of(problem)) from error


class Failure(Exception):
    """A verb's own refusal, with a catalogue code."""

    def __init__(self, code: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy

    def to_problem(self) -> dict[str, Any]:
        """Give the problem document."""
        from worker.compiler.errors import CompilerError

        return dict(CompilerError(self.code, self.message, remedy=self.remedy).to_problem())


class Told(Exception):
    """A problem document that another process made."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(str(problem.get("detail", "")))
        self.problem = problem


def problem_of(error: BaseException) -> dict[str, Any] | None:
    """Give the problem document of a known failure, None for a bug."""
    own = getattr(error, "problem", None)
    if isinstance(own, dict):
        return own
    to_problem = getattr(error, "to_problem", None)
    if callable(to_problem):
        return dict(to_problem())
    if isinstance(error, OSError) and error.filename is not None:
        reason = error.strerror or "cannot be used"
        return Failure("TW-CLI-001", f"{error.filename}: {reason}").to_problem()
    return None


def exit_code_of(problem: dict[str, Any]) -> int:
    """Give the exit code a problem document asks for."""
    code = problem.get("exit_code")
    return code if isinstance(code, int) else Exit.SERVICE
