"""Datasets that are kept in the store: immutable versions, as lists of contents.

Whoever adds a version holds the dataset's name until the transaction ends (on SQLite all
of the database), so that two that add at once make two versions, one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Select,
    func,
    insert,
    literal,
    select,
    text,
    union_all,
)

from weirbox.domain.base import storable
from weirbox.errors import DatasetError
from weirbox.store.base import DATASET_CASE, DATASET_VERSION, PAYLOAD
from weirbox.store.queries import CHUNK, payloads
from weirbox.store.rows import unpack_case
from weirbox.store.staging import STAGED_CASE
from weirbox.store.types import utc_now

_STAGED = STAGED_CASE.alias("staged")

_FETCHED = 5000
"""Rows that are read at a time."""

_LISTED = 5
"""The most names that a message lists."""


@dataclass(frozen=True, kw_only=True)
class StoredVersion:
    """One version of a dataset.

    Attributes:
        digest: Over the ids and contents of its cases, in their order.
        source: Where the cases came from.
    """

    name: str
    version: int
    digest: str
    records: int
    source: str
    created_at: datetime

    @property
    def label(self) -> str:
        """What a run calls it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """How many cases differ between two versions, by their ids."""

    added: int = 0
    removed: int = 0
    changed: int = 0


# --- adding -----------------------------------------------------------------------


def add_version(
    connection: Connection, name: str, *, source: str, append: bool
) -> tuple[StoredVersion, StoredVersion | None]:
    """Make the staged cases the newest version of a dataset, if they make a difference.

    Safe to run twice: the same cases again make no version.

    Args:
        connection: A writing transaction that sees the staged cases, whose contents are
            kept already.
        append: Whether they join the newest version's cases, behind them, instead of
            replacing them all; a case whose id is there already takes its place.

    Returns:
        The newest version, and the one before; the same one twice where nothing changed.
    """
    _hold(connection, name)
    before = newest(connection, name)
    cases = _joined(before) if append and before is not None else _STAGED
    in_order = select(cases.c.case_key, cases.c.case_digest).order_by(cases.c.position)
    found, records = _digest_of(
        connection.execute(in_order, execution_options={"yield_per": _FETCHED})
    )
    if before is not None and before.digest == found:
        return before, before
    made = StoredVersion(
        name=name,
        version=1 if before is None else before.version + 1,
        digest=found,
        records=records,
        source=storable(source),
        created_at=utc_now(),
    )
    connection.execute(insert(DATASET_VERSION), asdict(made))
    named = {"name": literal(name), "version": literal(made.version), **cases.c}
    rows = select(*(column.label(key) for key, column in named.items()))
    connection.execute(insert(DATASET_CASE).from_select(list(named), rows))
    return made, before


def _hold(connection: Connection, name: str) -> None:
    if connection.dialect.name != "sqlite":
        digest = hashlib.sha256(f"weirbox dataset {name}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})


def _joined(before: StoredVersion) -> Any:
    """The newest version's cases with the staged ones in their places, and behind them the
    staged ones that it has not, one after the other."""
    staged, there = STAGED_CASE.c, _cases(before.name, before.version).subquery("there")
    kept = select(
        there.c.position,
        there.c.case_key,
        func.coalesce(staged.case_digest, there.c.case_digest).label("case_digest"),
    ).select_from(there.outerjoin(STAGED_CASE, staged.case_key == there.c.case_key))
    fresh = select(staged.case_key).except_(_keys(before.name, before.version))
    behind = func.row_number().over(order_by=staged.position) + (before.records - 1)
    new = select(behind.label("position"), staged.case_key, staged.case_digest).where(
        staged.case_key.in_(fresh)
    )
    return union_all(kept, new).subquery("joined")


def _digest_of(rows: Iterable[Any]) -> tuple[str, int]:
    digest = VersionDigest()
    for row in rows:
        digest.add(row.case_key, row.case_digest)
    return digest.hexdigest(), digest.records


class VersionDigest:
    """The digest of a version, or of its first cases, as they are read."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self.records = 0

    def add(self, case_key: str, case_digest: str) -> None:
        """Take in the next case."""
        self._sha.update(f"{case_key} {case_digest}\n".encode("ascii"))
        self.records += 1

    def hexdigest(self) -> str:
        """The digest of what was taken in."""
        return self._sha.hexdigest()


# --- reading ----------------------------------------------------------------------


def newest(connection: Connection, name: str) -> StoredVersion | None:
    """The newest version of a dataset, or None."""
    return next(iter(versions(connection, name, limit=1)), None)


def versions(connection: Connection, name: str, *, limit: int) -> list[StoredVersion]:
    """The versions of a dataset, newest first."""
    statement = (
        select(DATASET_VERSION)
        .where(DATASET_VERSION.c.name == name)
        .order_by(DATASET_VERSION.c.version.desc())
        .limit(limit)
    )
    return [StoredVersion(**row._mapping) for row in connection.execute(statement)]


def datasets(connection: Connection) -> list[StoredVersion]:
    """The newest version of every dataset, by name."""
    last = (
        select(DATASET_VERSION.c.name, func.max(DATASET_VERSION.c.version).label("version"))
        .group_by(DATASET_VERSION.c.name)
        .subquery()
    )
    statement = (
        select(DATASET_VERSION)
        .join(
            last,
            (DATASET_VERSION.c.name == last.c.name) & (DATASET_VERSION.c.version == last.c.version),
        )
        .order_by(DATASET_VERSION.c.name)
    )
    return [StoredVersion(**row._mapping) for row in connection.execute(statement)]


def find_version(connection: Connection, name: str, version: int | None = None) -> StoredVersion:
    """A version of a dataset; the newest one if none is named.

    Raises:
        DatasetError: When there is none, naming those that there are.
    """
    last = newest(connection, name)
    if last is None:
        names = [found.name for found in datasets(connection)]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        known = f"it has {', '.join(names[:_LISTED])}{more}" if names else "it has none yet"
        raise DatasetError(
            f"there is no dataset {name!r} in the store ({known}); add one with: "
            f"weirbox dataset add FILE --name {name}"
        )
    if version is None or version == last.version:
        return last
    if not 1 <= version <= last.version:
        raise DatasetError(
            f"dataset {name!r} has no version {version}: its versions are 1 to {last.version}"
        )
    row = connection.execute(
        select(DATASET_VERSION).where(
            DATASET_VERSION.c.name == name, DATASET_VERSION.c.version == version
        )
    ).one()
    return StoredVersion(**row._mapping)


def stream_cases(connection: Connection, name: str, version: int) -> Iterator[Any]:
    """A version's cases in order, as rows with `case_key`, `case_digest` and `body`; memory
    is bounded by a batch."""
    after = -1
    joined = DATASET_CASE.join(PAYLOAD, PAYLOAD.c.digest == DATASET_CASE.c.case_digest)
    statement = (
        select(DATASET_CASE.c.position, DATASET_CASE.c.case_key, PAYLOAD.c.digest, PAYLOAD.c.body)
        .select_from(joined)
        .where(*_of(name, version))
        .order_by(DATASET_CASE.c.position)
        .limit(CHUNK)
    )
    while page := connection.execute(statement.where(DATASET_CASE.c.position > after)).all():
        yield from page
        after = page[-1].position


# --- differences ------------------------------------------------------------------


def changes(connection: Connection, before: StoredVersion, after: StoredVersion) -> Changes:
    """How much differs between two versions."""
    return Changes(
        **{
            kind: connection.execute(select(func.count()).select_from(keys.subquery())).scalar_one()
            for kind, keys in _differing(before, after).items()
        }
    )


def changed_ids(
    connection: Connection, before: StoredVersion, after: StoredVersion, *, limit: int | None
) -> dict[str, list[str]]:
    """The ids of the cases that were added, removed and changed, in their order.

    Args:
        limit: The most of each.
    """
    found = {}
    for kind, keys in _differing(before, after).items():
        where = before if kind == "removed" else after
        statement = (
            select(DATASET_CASE.c.case_digest)
            .where(*_of(where.name, where.version), DATASET_CASE.c.case_key.in_(keys))
            .order_by(DATASET_CASE.c.position)
            .limit(limit)
        )
        found[kind] = list(_ids(connection, connection.execute(statement).scalars().all()))
    return found


def _ids(connection: Connection, digests: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(digests), CHUNK):
        some = digests[start : start + CHUNK]
        bodies = payloads(connection, some)
        yield from (unpack_case(bodies[digest]).id for digest in some)


def _differing(before: StoredVersion, after: StoredVersion) -> dict[str, CompoundSelect[Any]]:
    """The keys of the cases that differ, as differences of sets: a join would have SQLite
    compare each case with every other."""
    old, new = (before.name, before.version), (after.name, after.version)
    other = _contents(*new).except_(_contents(*old)).subquery()
    return {
        "added": _keys(*new).except_(_keys(*old)),
        "removed": _keys(*old).except_(_keys(*new)),
        "changed": select(other.c.case_key).intersect(_keys(*old)),
    }


def _of(name: str, version: int) -> tuple[Any, Any]:
    return DATASET_CASE.c.name == name, DATASET_CASE.c.version == version


def _keys(name: str, version: int) -> Select[Any]:
    return select(DATASET_CASE.c.case_key).where(*_of(name, version))


def _contents(name: str, version: int) -> Select[Any]:
    return select(DATASET_CASE.c.case_key, DATASET_CASE.c.case_digest).where(*_of(name, version))


def _cases(name: str, version: int) -> Select[Any]:
    return select(
        DATASET_CASE.c.position, DATASET_CASE.c.case_key, DATASET_CASE.c.case_digest
    ).where(*_of(name, version))
