"""One module per paper: runs its experiments, compares with its numbers, draws its figures."""
