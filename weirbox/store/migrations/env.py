"""Alembic's environment: migrations run on the connection they are given."""

from alembic import context
from sqlmodel import SQLModel

import weirbox.store.side_tables
import weirbox.store.tables  # noqa: F401

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
