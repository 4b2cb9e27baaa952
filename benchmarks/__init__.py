"""Speed against a peer, both sides measured in the same run and on one thread each, where CPU time is work done."""

import os

# Before anything here loads BLAS or OpenMP: with more threads a peer of small matrices waits, and pays for it.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
