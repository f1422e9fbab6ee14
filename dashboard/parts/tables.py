"""Tables of records; cells are drawn as text, so nothing in them becomes a link or an image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import streamlit as st

from dashboard.parts.labels import HEX, Label

Record = Mapping[str, object]


def table(
    records: Sequence[Record],
    columns: Mapping[str, Any],
    *,
    alt: str,
    key: str | None = None,
    width: Literal["stretch", "content"] = "stretch",
    height: int | Literal["content"] = "content",
) -> None:
    """Show at most some hundred records.

    Args:
        columns: How columns look; one that is not named is shown as it is.
        alt: What the table is, for those who hear it.
    """
    st.dataframe(
        pd.DataFrame(list(records)),
        column_config=dict(columns),
        hide_index=True,
        height=height,
        width=width,
        key=key,
        alt=alt,
    )


def badges(title: str, labels: Iterable[Label], *, width: int | None = None) -> Any:
    """A column whose cells are given by `cell` for one of the labels."""
    known = list(labels)
    return st.column_config.MultiselectColumn(
        title,
        options=[label.text for label in known],
        color=[HEX[label.color] for label in known],
        width=width,
    )


def cell(label: Label | None) -> list[str]:
    """A cell of a `badges` column; empty where there is nothing to say yet."""
    return [] if label is None else [label.text]
