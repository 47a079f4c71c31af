"""Work in processes that can be limited and killed, and what is said to them and by them."""
