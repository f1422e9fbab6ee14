"""Make a suite independent of the files it names: paths absolute, contents by digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from weirbox import judges
from weirbox.domain.files import FileSource
from weirbox.domain.judging import Prompt, ReplayProvider
from weirbox.domain.plan import FrozenFile
from weirbox.domain.seams import Workshop
from weirbox.domain.spec import RecordedHarness, Suite
from weirbox.errors import PlanError, PromptMissing
from weirbox.functions import absolute_path, absolute_suite, function_file, load_function


class FrozenSuite(NamedTuple):
    """A suite that needs nothing of the file system any more, but its dataset."""

    suite: Suite
    prompts: dict[str, Prompt]
    skipped_judges: dict[str, str]
    files: tuple[FrozenFile, ...]
    contents: dict[str, bytes]


def freeze(suite: Suite, *, folder: str, prompt_folders: tuple[str, ...]) -> FrozenSuite:
    """Resolve prompts, absolute paths and file contents.

    Args:
        folder: What relative paths in the suite start from.
        prompt_folders: Where prompts are looked for, before the built-in ones.

    Raises:
        SuiteError: When a prompt is malformed, or a function cannot be loaded; a prompt
            that is missing skips its judge.
        PlanError: When a file that the suite names cannot be read.
    """
    prompts: dict[str, Prompt] = {}
    skipped: dict[str, str] = {}
    for judge in suite.judges:
        try:
            prompts[judge.name] = judges.resolve(judge.prompt, prompt_folders)
        except PromptMissing as error:
            skipped[judge.name] = str(error)
    absolute = _without_its_surroundings(suite, folder)
    contents: dict[str, bytes] = {}
    files = []
    for path in dict.fromkeys(_files(absolute, folder)):
        body = _read(path)
        digest = hashlib.sha256(body).hexdigest()
        contents[digest] = body
        files.append(FrozenFile(path=path, digest=digest))
    frozen = FrozenSuite(absolute, prompts, skipped, tuple(files), contents)
    _load_functions(frozen, folder)
    return frozen


def _load_functions(frozen: FrozenSuite, folder: str) -> None:
    """Load every function once from what was frozen, so that a mistake shows before a run."""
    digests = {file.path: file.digest for file in frozen.files}
    workshop = Workshop(
        folder=folder,
        read_file=lambda path: frozen.contents[digests[path]],
        read_secret=lambda name: "",
    )
    for function in _functions(frozen.suite):
        load_function(function, workshop)


def _read(path: str) -> bytes:
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise PlanError(f"the suite names {path!r}, which is no regular file")
        return Path(path).read_bytes()
    except OSError as error:
        raise PlanError(f"the suite names {path!r}, which cannot be read: {error}") from error


def _without_its_surroundings(suite: Suite, folder: str) -> Suite:
    """The suite as it is kept with a run: paths absolute, and neither the records, which are
    trials by then, nor what starts runs of it."""
    suite = absolute_suite(suite, folder)
    dataset = suite.dataset
    if dataset.records is not None:
        dataset = dataset.model_copy(update={"records": ()})
    return suite.model_copy(update={"dataset": dataset, "schedule": None, "auto_run": None})


def _files(suite: Suite, folder: str) -> Iterator[str]:
    if isinstance(suite.harness, RecordedHarness) and suite.harness.path is not None:
        yield suite.harness.path
    for function in _functions(suite):
        file = function_file(function, folder)
        if file is not None:
            yield file
    for provider in suite.providers.values():
        if isinstance(provider, ReplayProvider):
            yield provider.path
    for part in (suite.compute, *suite.graders):
        for content in getattr(part, "files", {}).values():
            if isinstance(content, FileSource):
                yield absolute_path(content.path, folder)


def _functions(suite: Suite) -> Iterator[str]:
    parts = (*suite.graders, *suite.rules, *suite.providers.values(), suite.harness)
    for part in parts:
        function = getattr(part, "function", None)
        if isinstance(function, str):
            yield function
