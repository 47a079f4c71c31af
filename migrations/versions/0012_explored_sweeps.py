"""Sweeps that estimate first: what is estimated, its parts, and what came of them.

Revision: 0012, additive: the previous release compiles the base where a part is estimated, and this
one fails such a part, which a resume runs again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0012'
down_revision = '0011'
branch_labels = None
depends_on = None

_COLUMNS = (('sweep', 'explore'), ('sweep_item', 'part'), ('sweep_item', 'estimates'))


def upgrade() -> None:
    for table, name in _COLUMNS:
        with op.batch_alter_table(table) as batch_op:
            batch_op.add_column(sa.Column(name, sa.Text(), nullable=True))


def downgrade() -> None:
    for table, name in reversed(_COLUMNS):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column(name)
