"""`weirbox dataset`: its commands; each imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from weirbox.cli.edge import load_settings, screen
from weirbox.cli.options import AsJson

dataset_app = typer.Typer(
    help="Keep datasets in the store, in versions that never change.", no_args_is_help=True
)

DatasetName = Annotated[str, typer.Argument(metavar="NAME", help="The dataset's name.")]


@dataset_app.command()
def add(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A file, or package:NAME/FILE.", show_default=False),
    ],
    name: Annotated[str, typer.Option(help="The dataset's name.")],
    append: Annotated[
        bool,
        typer.Option("--append", help="Join the newest version's cases instead of replacing them."),
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", help="jsonl, json, csv, tsv, parquet or yaml; else by name."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Where id, input and target stand, for a known shape.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="PATH", help="Dot path of the id in a record.")
    ] = None,
    input: Annotated[
        str | None, typer.Option(metavar="PATH", help="Dot path of the input.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="PATH", help="Dot path of the target.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Default: utf-8.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Of csv and tsv.")] = None,
    comment: Annotated[
        str | None, typer.Option(help="What begins the lines before the header of csv and tsv.")
    ] = None,
    on_error: Annotated[
        str | None, typer.Option(help="At a malformed record: stop (default) or quarantine.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a file's cases as a new version of a dataset: all of them, or nothing.

    The same cases again make no version.
    """
    from weirbox.cli.datasets import add_file

    reading = {
        **{"format": format, "preset": preset, "encoding": encoding, "delimiter": delimiter},
        **{"comment": comment, "on_error": on_error},
        "fields": {"id": id, "input": input, "target": target},
    }
    with screen(as_json=as_json) as to:
        add_file(to, load_settings(), file, name=name, append=append, reading=reading)


@dataset_app.command()
def versions(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Default: every dataset's newest.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="The most versions.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List a dataset's versions, newest first, each with what it changed; or all datasets."""
    from weirbox.cli.datasets import show_datasets, show_versions

    with screen(as_json=as_json) as to:
        if name is None:
            show_datasets(to, load_settings())
        else:
            show_versions(to, load_settings(), name, limit)


@dataset_app.command()
def diff(
    name: DatasetName,
    before: Annotated[int, typer.Argument(metavar="A", help="A version.")],
    after: Annotated[int, typer.Argument(metavar="B", help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """Show which cases were added, removed and changed from version A to version B."""
    from weirbox.cli.datasets import show_diff

    with screen(as_json=as_json) as to:
        show_diff(to, load_settings(), name, before, after)
