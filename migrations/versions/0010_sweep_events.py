"""Numbers of the changes of a sweep and of its items, by which streams of them go on.

Revision: 0010, additive: what the previous release changes has no number, so a stream tells of it
with the next change that has one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0010'
down_revision = '0008'
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, name in (('sweep', 'event_seq'), ('sweep_item', 'seq')):
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default='0')
        with op.batch_alter_table(table) as batch_op:
            batch_op.add_column(column)


def downgrade() -> None:
    for table, name in (('sweep_item', 'seq'), ('sweep', 'event_seq')):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column(name)
