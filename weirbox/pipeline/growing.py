"""Datasets that grow in the store, and the runs that answer their growth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from weirbox.datasets import open_dataset
from weirbox.domain.case import Case, DatasetVersion
from weirbox.domain.spec import DatasetSpec
from weirbox.errors import DatasetError
from weirbox.store import dataset_versions, registry
from weirbox.store.dataset_versions import Changes, StoredVersion, VersionDigest
from weirbox.store.engine import Connection, Database
from weirbox.store.registry import DueRun as DueRun
from weirbox.store.registry import answered as answered
from weirbox.store.registry import due as due
from weirbox.store.registry import take as take
from weirbox.store.rows import case_key, pack_case, unpack_case
from weirbox.store.staging import BATCH, STAGED_CASE, Staging, staging


class CaseSource(Protocol):
    """One pass over a dataset: its cases, and then the version that they add up to."""

    def __iter__(self) -> Iterator[Case]:
        """The cases, in order."""

    @property
    def version(self) -> DatasetVersion:
        """What was read; known once the cases are exhausted."""


class StoredCases:
    """One pass over a version of a dataset in the store; memory is bounded by a batch."""

    def __init__(self, connection: Connection, found: StoredVersion, limit: int | None) -> None:
        self._connection = connection
        self._found = found
        self._limit = limit
        self._digest = VersionDigest()

    def __iter__(self) -> Iterator[Case]:
        if self._limit == 0:
            raise DatasetError(f"dataset {self._found.label!r}: nothing to run: 'limit' is 0")
        found = self._found
        for row in dataset_versions.stream_cases(self._connection, found.name, found.version):
            self._digest.add(row.case_key, row.digest)
            yield unpack_case(row.body)
            if self._digest.records == self._limit:
                return

    @property
    def version(self) -> DatasetVersion:
        """What was read; known once the cases are exhausted."""
        return DatasetVersion(
            name=self._found.label,
            digest=self._digest.hexdigest(),
            records=self._digest.records,
        )


@contextmanager
def opened(database: Database, spec: DatasetSpec, *, folder: str) -> Iterator[CaseSource]:
    """Find a suite's dataset, wherever it is, for one pass.

    A version in the store is read in one reading transaction, for which nobody waits.

    Raises:
        DatasetError: When there is no such dataset or version.
    """
    if spec.name is None:
        yield open_dataset(spec, folder=folder).scan()
        return
    with database.read() as connection:
        found = dataset_versions.find_version(connection, spec.name, spec.version)
        yield StoredCases(connection, found, spec.limit)


@dataclass(frozen=True, kw_only=True)
class Added:
    """What adding came to.

    Attributes:
        version: The newest version.
        new: Whether it was made by this.
        changes: Against the version before.
        suites: Registered suites that will be run for it.
    """

    version: StoredVersion
    new: bool
    changes: Changes
    warnings: tuple[str, ...]
    suites: tuple[str, ...]


def add_dataset(
    database: Database, spec: DatasetSpec, *, folder: str, name: str, append: bool = False
) -> Added:
    """Add a file's cases to the store as a new version of a dataset: all of it, or nothing.

    Safe to run twice: the same cases again make no version.

    Args:
        folder: What a relative path starts from.
        append: Whether they join the newest version's cases instead of replacing them; a
            case whose id is there already takes its place.

    Raises:
        DatasetError: When the file cannot be read as declared.
    """
    dataset = open_dataset(spec, folder=folder)
    scan = dataset.scan()
    with staging(database, STAGED_CASE) as staged:
        _stage(staged, scan)
        staged.publish()
        with staged.write() as connection:
            version, before = dataset_versions.add_version(
                connection, name, source=dataset.name, append=append
            )
    with database.read() as connection:
        changes = (
            Changes(added=version.records)
            if before is None
            else dataset_versions.changes(connection, before, version)
        )
        new = version != before
        suites = registry.answering(connection, name) if new else []
    return Added(
        version=version,
        new=new,
        changes=changes,
        warnings=scan.version.warnings,
        suites=tuple(suites),
    )


def _stage(staged: Staging, cases: CaseSource) -> None:
    contents, rows = [], []
    for position, case in enumerate(cases):
        digest, body = pack_case(case)
        contents.append((digest, body))
        rows.append({"position": position, "case_key": case_key(case.id), "case_digest": digest})
        if len(rows) == BATCH:
            staged.add(contents, rows)
            contents, rows = [], []
    staged.add(contents, rows)
