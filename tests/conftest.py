"""One thread for BLAS, OpenMP and torch, set before any of them is loaded: small matrices only wait for more."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
