"""Reads for the dashboard; whatever lists texts cuts them in SQL to these bounds."""

TEXT_SHOWN = 200
"""Characters of a case id, category or message that a list shows."""

GROUPS_SHOWN = 50
"""Groups (errors, categories, values) that a chart or table lists, the largest first."""

EVENTS_SHOWN = 200
"""Entries of a run's timeline that are listed, the latest."""
