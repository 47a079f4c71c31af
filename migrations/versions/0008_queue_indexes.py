"""Indexes in the order in which the queue is asked, so that a long one costs no more than a short.

Revision: 0008, indexes only: the previous release reads and writes as before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0008'
down_revision = '0007'
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table('work_item') as batch_op:
        batch_op.create_index(
            'ix_work_item_queue', ['state', sa.text('priority DESC'), 'created', 'id'], unique=False
        )
        batch_op.drop_index(batch_op.f('ix_work_item_state_priority_created'))
    with op.batch_alter_table('job') as batch_op:
        batch_op.create_index(batch_op.f('ix_job_owner_state'), ['owner', 'state'], unique=False)


def downgrade() -> None:
    with op.batch_alter_table('job') as batch_op:
        batch_op.drop_index(batch_op.f('ix_job_owner_state'))
    with op.batch_alter_table('work_item') as batch_op:
        batch_op.create_index(
            batch_op.f('ix_work_item_state_priority_created'), ['state', 'priority', 'created'],
            unique=False,
        )
        batch_op.drop_index('ix_work_item_queue')
