"""What some tests need of the machine; where CI is set they fail instead of skipping."""

import os
import shutil
import subprocess

import pytest


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing; continuous integration must provide it")
    pytest.skip(f"{what} is missing")


def require_tool(name: str) -> None:
    """Skip without the program, or fail in continuous integration."""
    if shutil.which(name) is None:
        _missing(name)


def require_mount_namespace() -> None:
    """Skip where no file system can be mounted in a namespace of one's own."""
    require_tool("unshare")
    probe = "unshare --user --map-root-user --mount sh -c 'mount -t tmpfs tmpfs /mnt'"
    if subprocess.run(probe, check=False, shell=True, capture_output=True).returncode != 0:  # noqa: S602 (a literal)
        _missing("a mount namespace")
