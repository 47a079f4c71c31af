"""Which strategies an item wants, which ones a worker has, and why a job waits.

Revision: 0003, additive: the previous release ignores the columns, and what it inserts wants
nothing in particular.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ('work_item', 'worker'):
        with op.batch_alter_table(table) as batch_op:
            batch_op.add_column(
                sa.Column('strategies', sa.String(), nullable=False, server_default='')
            )
    with op.batch_alter_table('work_item') as batch_op:
        batch_op.create_index(
            batch_op.f('ix_work_item_state_strategies'), ['state', 'strategies'], unique=False
        )
    with op.batch_alter_table('job') as batch_op:
        batch_op.add_column(sa.Column('waiting', sa.String(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table('job') as batch_op:
        batch_op.drop_column('waiting')
    with op.batch_alter_table('work_item') as batch_op:
        batch_op.drop_index(batch_op.f('ix_work_item_state_strategies'))
    for table in ('worker', 'work_item'):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column('strategies')
