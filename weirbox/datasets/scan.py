"""One pass over a dataset: cases as they are read, and the version they add up to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from pydantic import JsonValue, ValidationError

from weirbox.datasets.entries import Entry, RecordProblem
from weirbox.datasets.identity import Ids, Tally
from weirbox.datasets.shapes import Shape
from weirbox.domain.base import canonical_json, digest, storable
from weirbox.domain.case import Case, DatasetVersion, ParseError
from weirbox.errors import DatasetError

DERIVED_ID = 16
"""Hex digits of a derived id: 64 bits."""


@dataclass(frozen=True)
class Dataset:
    """A dataset that was found; it can be read any number of times.

    Attributes:
        name: The file's name, or ``inline``.
        where: What messages call it.
        unit: What positions count: ``line``, ``row`` or ``record``.
        entries: Starts a new reading.
        quarantine: Whether a malformed record becomes a quarantined case.
        limit: The most records to take.
    """

    name: str
    where: str
    unit: str
    entries: Callable[[], Iterator[Entry]]
    shape: Shape
    quarantine: bool
    limit: int | None

    def scan(self) -> Scan:
        """Start one pass, which gives the cases and then the version."""
        return Scan(self)

    def cases(self) -> Iterator[Case]:
        """The cases in file order, each as it is read.

        Raises:
            DatasetError: As `Scan`.
        """
        return iter(self.scan())

    def version(self) -> DatasetVersion:
        """Read the whole dataset for its version.

        Raises:
            DatasetError: As `Scan`.
        """
        scan = self.scan()
        for _ in scan:
            pass
        return scan.version

    def place(self, position: int) -> str:
        """Where a record stands, as ``file:line`` or ``records[index]``."""
        if self.unit == "record":
            return f"records[{position}]"
        return storable(f"{self.name}:{position}")


class Scan:
    """One pass over a dataset; iterate it once, then ask for the version.

    Memory: one record, and a few bytes per record to tell ids apart.

    Raises:
        DatasetError: While iterating: at a malformed record unless the suite says
            ``on_error: quarantine``, at an id that is used twice, when the file
            cannot be read as declared, and when there is nothing to run.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._ids = Ids(dataset.where, dataset.unit)
        self._sha = hashlib.sha256()
        self._records = 0
        self._quarantined = Tally()
        self._leaking = Tally()
        self._started = False
        self._version: DatasetVersion | None = None

    def __iter__(self) -> Iterator[Case]:
        if self._started:
            raise RuntimeError("a scan is one pass: call Dataset.scan() for another")
        self._started = True
        return self._cases()

    @property
    def version(self) -> DatasetVersion:
        """What was read; known once the scan is exhausted."""
        if self._version is None:
            raise RuntimeError("the version is known when all cases have been read")
        return self._version

    def _cases(self) -> Iterator[Case]:
        for entry in islice(self._dataset.entries(), self._dataset.limit):
            case = self._case(entry)
            line = canonical_json([case.id, case.content_digest])
            self._sha.update(line.encode("ascii") + b"\n")
            self._records += 1
            yield case
        if not self._records:
            why = "'limit' is 0" if self._dataset.limit == 0 else "there are no records"
            raise DatasetError(f"{self._dataset.where}: nothing to run: {why}")
        self._version = DatasetVersion(
            name=storable(self._dataset.name),
            digest=self._sha.hexdigest(),
            records=self._records,
            warnings=tuple(self._warnings()),
        )

    def _case(self, entry: Entry) -> Case:
        id_: str | None = None
        try:
            if entry.problem is not None:
                raise RecordProblem(entry.problem)
            id_ = self._dataset.shape.id_of(entry.value)
            return self._read(entry, id_)
        except RecordProblem as problem:
            if not self._dataset.quarantine:
                raise DatasetError(
                    f"{self._dataset.where}, {self._dataset.unit} {entry.position}: {problem}: "
                    "mend the record, or set 'on_error: quarantine' to go on without it"
                ) from problem
            return self._malformed(entry, id_, str(problem))

    def _read(self, entry: Entry, id_: str | None) -> Case:
        shape, value = self._dataset.shape, entry.value
        input_, target = shape.input(value), shape.target(value)
        try:
            case = Case(
                id="",
                input=input_,
                target=target,
                record=value,
                place=self._dataset.place(entry.position),
            )
        except ValidationError as error:
            raise RecordProblem(_why_not_json(error)) from error
        if input_ is value and target is not None:
            self._leaking.add(case.place)
        return case.model_copy(update={"id": self._identify(id_, value, entry.position)})

    def _malformed(self, entry: Entry, id_: str | None, problem: str) -> Case:
        raw = entry.raw if entry.problem is not None else _text_of(entry.value)
        case = Case(
            id=self._identify(id_, {"malformed": raw}, entry.position),
            parse_error=ParseError(message=storable(problem), raw=storable(raw)),
            place=self._dataset.place(entry.position),
        )
        self._quarantined.add(case.place)
        return case

    def _identify(self, id_: str | None, content: JsonValue, position: int) -> str:
        if id_ is None:
            return self._ids.derive(digest(content)[:DERIVED_ID], position)
        return self._ids.take(storable(id_), position)

    def _warnings(self) -> list[str]:
        found = self._ids.warnings()
        if self._leaking.count:
            found.append(
                "records without the field 'input', whose input is the whole record, target "
                f"included: {self._leaking.count}: {self._leaking.examples()}"
            )
        if self._quarantined.count:
            found.append(
                f"malformed records, quarantined: {self._quarantined.count}: "
                f"{self._quarantined.examples()}"
            )
        return found


def _why_not_json(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    if first["type"] == "recursion_loop":
        return "the record is nested too deeply: more than about 250 levels"
    return f"the record is not JSON: {first['msg']}"


def _text_of(value: JsonValue) -> str:
    try:
        return canonical_json(value)
    except RecursionError:
        return "(nested too deeply to be written out)"


__all__ = ["Dataset", "Scan"]
