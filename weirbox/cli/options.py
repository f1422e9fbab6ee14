"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from weirbox.domain.words import RunKind

if TYPE_CHECKING:
    from weirbox.domain.run import Origin
    from weirbox.pipeline.planning import Selection

SUITE_SIZE = "suite"
"""What stands for the suite's own number of preview cases."""


class Engine(StrEnum):
    """What a run is driven with."""

    PREFECT = "prefect"
    DIRECT = "direct"


class ExportFormat(StrEnum):
    """How exported results are written."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


SuiteFile = Annotated[
    Path, typer.Argument(metavar="SUITE", help="A suite's YAML file, or a registered suite's name.")
]
RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's id, a unique beginning of it, or 'latest'."),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON as the last line; all else goes to standard error."),
]
UsedEngine = Annotated[
    Engine,
    typer.Option(help="'direct' starts at once and needs no Prefect server; same rows."),
]
Kind = Annotated[RunKind | None, typer.Option(help="Which part of the dataset; default: full.")]
Preview = Annotated[
    str | None,
    typer.Option(
        metavar="[N]", help="A deterministic sample of N cases (default: the suite's number)."
    ),
]
Delta = Annotated[
    bool, typer.Option("--delta", help="Only the cases that --case or --since names.")
]
Cases = Annotated[
    list[str] | None, typer.Option("--case", metavar="ID", help="A case; may be given again.")
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="The cases that are new or changed since a run; 'any': that no run has taken.",
    ),
]
Repository = Annotated[
    str | None,
    typer.Option(
        metavar="R",
        help="What the run is for; with --pull-request a newer run replaces an older one.",
    ),
]
PullRequest = Annotated[str | None, typer.Option(metavar="N", help="The pull request's number.")]
Commit = Annotated[str | None, typer.Option(metavar="SHA", help="The commit.")]
Branch = Annotated[str | None, typer.Option(metavar="B", help="The branch.")]
SinkNames = Annotated[
    list[str] | None,
    typer.Option(
        "--sink", metavar="NAME", help="Only this sink of the suite's; may be given again."
    ),
]
NoSinks = Annotated[bool, typer.Option("--no-sinks", help="Send the trials to no sink.")]
InCi = Annotated[
    bool, typer.Option("--ci", help="Take these from the job of GitHub Actions or GitLab CI.")
]


class PreviewCommand(TyperCommand):
    """A command whose ``--preview`` may stand with or without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a ``--preview`` without a number the suite's own."""
        own = args.index("--") if "--" in args else len(args)
        for at, arg in enumerate(args[:own]):
            follows = args[at + 1] if at + 1 < own else ""
            if arg == "--preview" and not follows.lstrip("-").isdigit():
                args = [*args[:at], f"--preview={SUITE_SIZE}", *args[at + 1 :]]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The options that say which cases a run takes."""

    kind: RunKind | None
    preview: str | None
    delta: bool
    cases: list[str] | None
    since: str | None

    def selection(self) -> Selection:
        """What planning makes of them.

        Raises:
            UserError: When they do not go together.
        """
        from weirbox.api import selection
        from weirbox.errors import NotPossible

        meant = {
            RunKind.PREVIEW: self.preview is not None,
            RunKind.DELTA: self.delta or bool(self.cases) or self.since is not None,
        }
        kinds = {kind for kind, given in meant.items() if given}
        if self.kind is not None:
            kinds.add(self.kind)
        if len(kinds) > 1:
            raise NotPossible(f"a run is either {' or '.join(sorted(kinds))}: choose one of them")
        if self.cases and self.since is not None:
            raise NotPossible("give either --case or --since: a delta run has one list of cases")
        kind = next(iter(kinds), RunKind.FULL)
        if kind is RunKind.DELTA and not self.cases and self.since is None:
            raise NotPossible("a delta run needs --case ID, once or more, or --since RUN")
        return selection(kind, cases=self.cases or None, since=self.since, size=self._size())

    def _size(self) -> int | None:
        from weirbox.errors import NotPossible

        if self.preview is None or self.preview == SUITE_SIZE:
            return None
        if not self.preview.isascii() or not self.preview.isdigit() or int(self.preview) < 1:
            raise NotPossible(f"--preview takes a number of cases, 1 or more, not {self.preview!r}")
        return int(self.preview)


def sinks_of(names: list[str] | None, none: bool) -> list[str] | None:
    """The sinks that a run's trials go to; None for the suite's own.

    Raises:
        UserError: When the options contradict each other.
    """
    from weirbox.errors import NotPossible

    if names and none:
        raise NotPossible("give either --sink or --no-sinks: a run cannot have both")
    return [] if none else names or None


def origin_of(
    repository: str | None,
    pull_request: str | None,
    commit: str | None,
    branch: str | None,
    ci: bool,
) -> Origin:
    """What asks for a run, by the options that say it."""
    import os

    from weirbox.cli.origins import Asked

    asked = Asked(repository=repository, pull_request=pull_request, commit=commit, branch=branch)
    return asked.origin(os.environ if ci else None)
