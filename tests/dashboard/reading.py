"""What is read back from a page."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

import dashboard

APP = Path(dashboard.__file__).with_name("app.py")


def texts(app: AppTest) -> str:
    """Everything that a page shows as plain text or in a box of code."""
    return "\n".join(str(one.value) for one in (*app.text, *app.code))


def marked_up(app: AppTest) -> str:
    """Everything that a page gives to markdown, labels of widgets and links included."""
    elements = (*app.markdown, *app.caption, *app.title, *app.subheader, *app.page_link)
    labelled = (*app.metric, *app.button, *app.tabs, *app.expander, *app.progress)
    words = [str(one.value) for one in elements]
    words += [str(getattr(one, "label", "") or getattr(one, "text", "")) for one in labelled]
    return "\n".join(words)
