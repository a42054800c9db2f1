"""Safe readers of files from elsewhere: arrays, sparse matrices, pickles, tensors."""
