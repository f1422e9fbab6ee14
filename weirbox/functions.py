"""Load the functions and files that a suite names."""

from __future__ import annotations

import hashlib
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weirbox.domain.exporting import JsonlSink, ParquetSink
from weirbox.domain.files import Files, FileSource
from weirbox.domain.judging import ReplayProvider
from weirbox.domain.seams import Workshop
from weirbox.domain.spec import RecordedHarness, Suite
from weirbox.errors import USER_FAULTS, SuiteError


def function_file(reference: str, folder: str) -> str | None:
    """The absolute path of the file of ``file.py:name``; None for ``module:name``.

    Raises:
        SuiteError: When no file can have such a name.
    """
    place, _, _ = reference.rpartition(":")
    return absolute_path(place, folder) if place.endswith(".py") else None


PACKAGE = "package:"
"""Stands before a data file of an installed package, which has no place of its own."""


def absolute_suite(suite: Suite, folder: str) -> Suite:
    """The suite with the paths of its data absolute: dataset, recordings, replies, sinks.

    Raises:
        SuiteError: When no file can have such a name.
    """

    def absolute(part: Any) -> Any:
        if part.path is None:
            return part
        return part.model_copy(update={"path": absolute_path(part.path, folder)})

    changes: dict[str, Any] = {}
    if not (suite.dataset.path or "").startswith(PACKAGE):
        changes["dataset"] = absolute(suite.dataset)
    if isinstance(suite.harness, RecordedHarness):
        changes["harness"] = absolute(suite.harness)
    changes["providers"] = {
        name: absolute(provider) if isinstance(provider, ReplayProvider) else provider
        for name, provider in suite.providers.items()
    }
    changes["sinks"] = tuple(
        absolute(sink) if isinstance(sink, JsonlSink | ParquetSink) else sink
        for sink in suite.sinks
    )
    return suite.model_copy(update=changes)


def read_files(files: Files, workshop: Workshop) -> dict[str, str | bytes]:
    """Files to lay: templates as texts, and the frozen content of those that are named."""
    return {
        place: workshop.read_file(absolute_path(content.path, workshop.folder))
        if isinstance(content, FileSource)
        else content
        for place, content in files.items()
    }


def absolute_path(path: str, folder: str) -> str:
    """The absolute path of a file that a suite names, relative to the suite's folder.

    Raises:
        SuiteError: When no file can have such a name.
    """
    try:
        return str(Path(folder, path).resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise SuiteError(f"the suite names {path[:200]!r}, which is no path: {error}") from error


def load_function(reference: str, workshop: Workshop) -> Callable[..., Any]:
    """Load ``module:name``, or ``file.py:name`` from its frozen source.

    Safe to call again: one frozen source is loaded once per process.

    Raises:
        SuiteError: When there is no such module, file or function.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise SuiteError(f"function {reference!r}: write 'module:name' or 'file.py:name'")
    file = function_file(reference, workshop.folder)
    try:
        module = _module_from(file, workshop) if file else importlib.import_module(place)
    except SuiteError:
        raise
    except USER_FAULTS as error:
        raise SuiteError(
            f"function {reference!r}: {place} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    if not callable(found):
        raise SuiteError(f"function {reference!r}: {place} has no function {name!r}")
    return found


def _module_from(file: str, workshop: Workshop) -> types.ModuleType:
    source = workshop.read_file(file)
    key = hashlib.sha256(file.encode() + b"\0" + source).hexdigest()[:16]
    module_name = f"weirbox_user_{key}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    module = types.ModuleType(module_name)
    module.__file__ = file
    sys.modules[module_name] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
