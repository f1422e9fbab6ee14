"""Cases and the dataset versions they come from."""

from __future__ import annotations

from pydantic import JsonValue

from weirbox.domain.base import Frozen, digest


class ParseError(Frozen):
    """Why a record could not be read, and where it stands."""

    message: str
    raw: str


class Case(Frozen):
    """One input to evaluate.

    Attributes:
        id: As written in the dataset, or derived from the content.
        input: What the harness is given.
        target: What the answer is compared with; absent in some suites.
        record: The whole record as read, for rules and templates.
        parse_error: Set when the record is malformed and the dataset says
            ``on_error: quarantine``.
        place: Where the record stands, as ``file:line``; not part of the content.
    """

    id: str
    input: JsonValue = None
    target: JsonValue = None
    record: JsonValue = None
    parse_error: ParseError | None = None
    place: str = ""

    @property
    def content_digest(self) -> str:
        """The digest of what the case says, wherever it stands."""
        error = self.parse_error.raw if self.parse_error else None
        return digest([self.input, self.target, self.record, error])


class DatasetVersion(Frozen):
    """One content of a dataset.

    Attributes:
        name: The file's name, or ``inline``.
        digest: Over the ids and contents of all records, in order.
        records: How many records there are.
        warnings: What a user should know, such as ids that were derived.
    """

    name: str
    digest: str
    records: int
    warnings: tuple[str, ...] = ()
