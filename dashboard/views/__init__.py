"""The pages, each a script that `dashboard/app.py` runs."""
