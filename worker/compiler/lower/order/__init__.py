"""In what order rows are issued, and which wait for which."""
