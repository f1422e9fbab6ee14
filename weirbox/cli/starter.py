"""The suite that `weirbox init` writes: commented, and it runs as it is, offline."""

from __future__ import annotations

from pathlib import Path

from weirbox.errors import UserError

FILE = "suite.yaml"
"""What the file is called in a folder."""

STARTER = """\
# A weirbox suite: which cases, what is run on them, and how the answers are judged.
# Run it:         weirbox run SUITE.yaml
# A quick look:   weirbox run SUITE.yaml --preview 2 --engine direct
# For editors:    weirbox schema > weirbox.schema.json
# yaml-language-server: $schema=weirbox.schema.json

suite: starter
description: Does the program turn a text into capital letters?

# The cases. Here they stand in the suite; usually they are in a file beside it:
#   dataset: {path: cases.jsonl}          # or .json, .csv, .tsv, .parquet, .yaml; .gz too
dataset:
  records:
    - {id: hello, input: hello world, target: HELLO WORLD}
    - {id: digits, input: route 66, target: ROUTE 66}
    - {id: street, input: straße, target: STRASSE}

# What is evaluated: a command, in a sandbox of its own for every case. Texts may hold
# {{ case.id }}, {{ case.input }} and {{ case.record.FIELD }}. Other kinds: http (a service),
# python (a function), recorded (answers that you have already).
harness:
  kind: command
  argv: [tr, "a-z", "A-Z"]
  stdin: "{{ case.input }}"

# How answers are graded. `tr` knows nothing of ß, so one of the three cases fails.
graders:
  - kind: answer-match
    name: same
    mode: exact

# Deterministic checks of a record, which decide whether a judge is worth paying for:
# rules:
#   - {kind: required, name: has-input, paths: [input]}

# Judges, cheap first; an uncertain verdict is asked again of the escalation tier:
# providers:
#   anthropic: {kind: anthropic, secret: ANTHROPIC_API_KEY}
# judges:
#   - name: correct
#     prompt: correctness
#     primary: {provider: anthropic, model: claude-haiku-4-5}
#     escalation: {provider: anthropic, model: claude-sonnet-4-5}
# budget:
#   usd: 1.00                      # a hard limit for the whole run

# Where judged cases go, besides the store that the dashboard reads:
# sinks:
#   - {kind: jsonl, path: results}

# repeats: 3                       # trials of every case
# preview: 10                      # cases of a preview run
# concurrency: {execute: 4, judge: 4}
"""


def write_starter(place: Path) -> Path:
    """Write the starter suite, and give the file it stands in.

    Args:
        place: A file, or a folder to put ``suite.yaml`` in.

    Raises:
        UserError: When there is such a file already, or none can be written.
    """
    file = place if place.suffix in (".yaml", ".yml") and not place.is_dir() else place / FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as into:
            into.write(STARTER.replace("SUITE.yaml", str(file)))
    except FileExistsError:
        raise UserError(f"{str(file)!r} is there already, and is left as it is") from None
    except OSError as error:
        raise UserError(f"{str(file)!r} cannot be written: {error.strerror}") from None
    return file
