"""Chains of operators that share rows: cut, priced, searched and written as one loop nest."""
