"""Where a dataset's bytes come from, and how they become text and lines."""

from __future__ import annotations

import codecs
import gzip
import importlib.util
import io
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from weirbox.domain.spec import DatasetSpec
from weirbox.errors import DatasetError
from weirbox.functions import PACKAGE

CHUNK = 2**20
"""Bytes read at a time: large against a line, small against memory."""


def to_path(spec: DatasetSpec, folder: str) -> str | None:
    """Where the dataset stands, independent of the current folder.

    Args:
        folder: The folder of the suite file, which relative paths start from.

    Returns:
        An absolute path, a ``package:`` reference as it is, or None for inline records.
    """
    if spec.path is None or spec.path.startswith(PACKAGE):
        return spec.path
    return os.path.abspath(os.path.join(folder, spec.path))


def find_file(path: str) -> Path:
    """The existing file of an absolute path or of a ``package:NAME/FILE`` reference.

    The package is located, not imported.

    Raises:
        DatasetError: When there is no such file or package.
    """
    if path.startswith(PACKAGE):
        return _package_file(path)
    file = Path(path)
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise DatasetError(
            f"dataset {path!r} does not exist: correct 'path' (relative paths start from the "
            "suite file's folder) or put the file there"
        ) from None
    except OSError as error:
        raise DatasetError(f"dataset {path!r} cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise DatasetError(f"dataset {path!r} is a folder: name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise DatasetError(
            f"dataset {path!r} is no regular file, but a pipe or a device, which cannot be read "
            "again: write its content to a file"
        )
    return file


def _package_file(reference: str) -> Path:
    package, _, inner = reference.removeprefix(PACKAGE).partition("/")
    if not package.isidentifier() or not inner:
        raise DatasetError(
            f"dataset {reference!r}: write 'package:NAME/FILE' with the name the package is "
            "imported by, not the name it is installed by"
        )
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise DatasetError(
            f"dataset {reference!r}: the package {package!r} is not installed in this "
            "environment: install the distribution that provides it"
        )
    folders = list(spec.submodule_search_locations or ())
    for folder in folders:
        file = Path(folder, inner)
        if file.is_file():
            return file
    raise DatasetError(
        f"dataset {reference!r}: there is no file {inner!r} in the package, which stands in "
        f"{', '.join(map(repr, folders)) or 'a single module'}"
    )


def open_binary(file: Path) -> BinaryIO:
    """Open a file for reading; what ends in ``.gz`` is unpacked on the way."""
    try:
        if file.suffix.lower() == ".gz":
            return gzip.open(file, "rb")  # type: ignore[return-value]
        return file.open("rb")
    except OSError as error:
        raise DatasetError(f"dataset {str(file)!r} cannot be opened: {error.strerror}") from error


def check_encoding(encoding: str) -> None:
    """Refuse a name that is not a text encoding.

    Raises:
        DatasetError: Naming the encoding.
    """
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    except LookupError:
        raise DatasetError(
            f"there is no text encoding {encoding!r}: give 'encoding' a name such as "
            "'utf-8', 'utf-16' or 'latin-1'"
        ) from None


def read_text(file: Path, encoding: str) -> Iterator[str]:
    """The file's text in pieces, without a byte order mark.

    Raises:
        DatasetError: Naming the file and the offset of the first byte that does
            not fit the encoding; or when the file cannot be read or unpacked.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    taken = 0
    first = True
    with open_binary(file) as stream:
        while True:
            data = _read(stream, file)
            if taken == 0:
                _refuse_wide(data, file, encoding)
            taken += len(data)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                offset = taken - len(error.object) + error.start
                _refuse_byte(file, encoding, offset, error.object[error.start])
            if text:
                yield text.removeprefix("\ufeff") if first else text
                first = False
            if not data:
                return


def _read(stream: BinaryIO, file: Path) -> bytes:
    try:
        return stream.read(CHUNK)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"dataset {str(file)!r} cannot be read: {error}: the file is damaged or is not "
            "what its name says"
        ) from error


def _refuse_wide(data: bytes, file: Path, encoding: str) -> None:
    """UTF-16 without a byte order mark is valid UTF-8 full of NULs; text never starts so."""
    nul = data[:4].find(b"\0")
    if nul >= 0 and codecs.lookup(encoding).name == "utf-8":
        _refuse_byte(file, encoding, nul, 0)


def _refuse_byte(file: Path, encoding: str, offset: int, byte: int) -> NoReturn:
    raise DatasetError(
        f"dataset {str(file)!r} is not {encoding}: byte 0x{byte:02x} at offset {offset}: "
        "declare the file's 'encoding' (such as 'utf-16' or 'latin-1') or convert it to UTF-8"
    )


def split_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Lines with their ends, which are LF, CR LF or CR, and nothing else.

    Unlike `str.splitlines`, characters such as U+2028 and U+0085 do not end a line.
    """
    held: list[str] = []
    for text in _keep_pairs(pieces):
        for part in io.StringIO(text, newline=""):
            held.append(part)
            if part[-1] in "\r\n":
                yield "".join(held)
                held.clear()
    if held:
        yield "".join(held)


def _keep_pairs(pieces: Iterable[str]) -> Iterator[str]:
    """Move the ends of pieces so that no CR LF is cut in two."""
    pairs = io.IncrementalNewlineDecoder(None, translate=False)
    for text in pieces:
        yield pairs.decode(text)
    yield pairs.decode("", final=True)


__all__ = [
    "CHUNK",
    "check_encoding",
    "find_file",
    "open_binary",
    "read_text",
    "split_lines",
    "to_path",
]
