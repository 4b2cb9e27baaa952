"""One thread for BLAS, OpenMP and torch, set before any of them is loaded: small matrices only wait for more."""

import os
import tempfile

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# The key that marks one's own runs is the tests' own, not the user's.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="privbo-tests-")
