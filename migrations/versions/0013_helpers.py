"""Which job's cache an idle worker fills.

Revision: 0013, additive: workers of the previous release help nobody, and are not asked to.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0013'
down_revision = '0012'
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table('worker') as batch_op:
        batch_op.add_column(sa.Column('helps', sa.String(), nullable=True))
        batch_op.create_index('ix_worker_helps', ['helps'], unique=True)


def downgrade() -> None:
    with op.batch_alter_table('worker') as batch_op:
        batch_op.drop_index('ix_worker_helps')
        batch_op.drop_column('helps')
