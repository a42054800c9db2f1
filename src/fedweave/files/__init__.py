"""Safe readers of files that others wrote: arrays, sparse matrices, pickles, tensors."""
