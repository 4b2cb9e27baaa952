"""``python -m tests.deployment.offline APP``: plays an app where no packet has a way out, and counts who wanted one.

To be run in a network namespace that has loopback only. The kernel counts every packet
for which it finds no route; the counts are printed, with one call to the outside as a control.
"""

import contextlib
import json
import socket
import sys
from pathlib import Path

from privbo.cli.main import app


def without_route() -> int:
    """Packets for which the kernel found no route, IPv4 and IPv6."""
    lines = Path("/proc/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Ip:"))
    four = int(values[names.index("OutNoRoutes")])
    six = [line.split()[1] for line in Path("/proc/net/snmp6").read_text().splitlines() if "Ip6OutNoRoutes" in line]
    return four + sum(map(int, six))


def main(home: str) -> None:
    before = without_route()
    app(["flower", "up", home], standalone_mode=False)
    wanted = without_route() - before
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        probe.sendto(b"x", ("192.0.2.1", 9))
    control = without_route() - before - wanted
    sys.stdout.write("\n" + json.dumps({"wanted": wanted, "control": control}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
