"""Ids: unique as written, or derived from content."""

from __future__ import annotations

import hashlib
import unicodedata

from weirbox.datasets.entries import shown
from weirbox.errors import DatasetError

LISTED = 5
"""The most examples that one warning names."""


class Tally:
    """A count, with its first few examples."""

    def __init__(self) -> None:
        self.count = 0
        self._examples: list[str] = []

    def add(self, example: str) -> None:
        """Count one more."""
        self.count += 1
        if self.count <= LISTED:
            self._examples.append(example)

    def examples(self) -> str:
        """The first examples, and how many are not named."""
        rest = f" and {self.count - LISTED} more" if self.count > LISTED else ""
        return ", ".join(self._examples) + rest


class Ids:
    """The ids of one pass over a dataset.

    Memory: one 12-byte digest and one position per record, whatever the ids' length.
    """

    def __init__(self, where: str, unit: str) -> None:
        self._where = where
        self._unit = unit
        self._seen: dict[int, int] = {}
        self._folded: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._derived = 0
        self._repeated = Tally()
        self._lookalikes = Tally()

    def take(self, id_: str, position: int) -> str:
        """Enter an id that the dataset gives.

        Raises:
            DatasetError: When an earlier record has it.
        """
        key = _key(id_)
        if key in self._seen:
            raise DatasetError(
                f"{self._where}: the id {shown(id_)} is used twice, at {self._unit} "
                f"{self._seen[key]} and {self._unit} {position}: ids must be unique: change or "
                "remove one, or leave the ids out of all records to derive them from content"
            )
        self._note_lookalike(id_, key, position)
        self._seen[key] = position
        return id_

    def derive(self, base: str, position: int) -> str:
        """Make an id of a content's digest; exact copies get ``-2``, ``-3``, in file order."""
        self._derived += 1
        key = _key(base)
        if key not in self._seen:
            self._seen[key] = position
            return base
        number = self._copies.get(key, 1) + 1
        self._copies[key] = number
        self._repeated.add(f"{self._unit} {position} (of {self._seen[key]})")
        return self.take(f"{base}-{number}", position)

    def _note_lookalike(self, id_: str, key: int, position: int) -> None:
        folded = unicodedata.normalize("NFC", id_.strip())
        folded_key = key if folded == id_ else _key(folded)
        other = self._folded.get(folded_key)
        if other is None and folded_key != key:
            other = self._seen.get(folded_key)
        if folded_key != key:
            self._folded.setdefault(folded_key, position)
        if other is not None:
            self._lookalikes.add(f"{shown(id_)} ({self._unit} {position} and {other})")

    def warnings(self) -> list[str]:
        """What a user should know about the ids."""
        found = []
        if self._derived:
            found.append(f"records without an id: {self._derived}; it is derived from the content")
        if self._repeated.count:
            found.append(
                f"exact copies of an earlier record: {self._repeated.count}, told apart by -2, "
                f"-3, ... in file order: {self._repeated.examples()}"
            )
        if self._lookalikes.count:
            found.append(
                "ids that differ from another only in white space around them or in Unicode "
                f"form: {self._lookalikes.count}: {self._lookalikes.examples()}"
            )
        return found


def _key(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:12], "big")


__all__ = ["Ids", "Tally"]
