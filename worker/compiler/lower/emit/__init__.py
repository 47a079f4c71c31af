"""Rows of a program from a schedule's leaves: transfers and computes, batch by batch."""
