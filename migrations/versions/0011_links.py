"""Links to jobs that are shared, so that they can be listed and revoked.

Revision: 0011, additive: links that the previous release makes end with the upgrade, and it does not know those of this one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0011'
down_revision = '0010'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'share_link',
        sa.Column('id', sa.String(), nullable=False),
        sa.Column('owner', sa.String(), nullable=False),
        sa.Column('job_id', sa.String(), nullable=False),
        sa.Column('created', sa.Double(), nullable=False),
        sa.Column('expires', sa.Double(), nullable=False),
        sa.Column('revoked', sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ['job_id'], ['job.id'], name=op.f('fk_share_link_job_id_job'), ondelete='CASCADE'
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_share_link')),
    )
    with op.batch_alter_table('share_link') as batch_op:
        for columns in (['job_id'], ['owner', 'created'], ['expires']):
            name = batch_op.f(f"ix_share_link_{'_'.join(columns)}")
            batch_op.create_index(name, columns, unique=False)


def downgrade() -> None:
    op.drop_table('share_link')
