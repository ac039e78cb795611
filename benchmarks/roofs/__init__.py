"""The practical roofs of a GPU by kind of kernel: what well-shaped work of each kind reaches on it."""
