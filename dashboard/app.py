"""The entry: ``streamlit run dashboard/app.py``; also from the installed package."""

from __future__ import annotations

import gc

import altair  # noqa: F401 - loaded here, so that it is frozen below
import pandas  # noqa: F401
import streamlit as st

from dashboard.parts.store import store_or_stop
from dashboard.parts.where import forget_filters


@st.cache_resource(show_spinner=False)
def _freeze_imports() -> None:
    """Spare what is loaded by now from the collections that follow every script run."""
    gc.collect()
    gc.freeze()


_freeze_imports()
st.set_page_config(page_title="weirbox", layout="wide")
page = st.navigation(
    [
        st.Page("views/runs.py", title="Runs", url_path="runs", default=True),
        st.Page("views/run.py", title="Run", url_path="run"),
        st.Page("views/cases.py", title="Cases", url_path="cases"),
        st.Page("views/case.py", title="Case", url_path="case"),
    ],
    position="top",
)
if page.url_path != "cases":
    forget_filters()
store_or_stop()
page.run()
