"""Kernel streams of models that were never measured: operators, their kernels, and the duration of each on a GPU."""
