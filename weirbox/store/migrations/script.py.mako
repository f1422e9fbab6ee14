"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
import sqlmodel
from alembic import op

import weirbox.store.types

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
