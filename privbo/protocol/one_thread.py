"""Libraries loaded after this module start no threads: the fork server loads it first, as it may have none."""

import os

from privbo.protocol.processes import VARIABLES

os.environ |= dict.fromkeys(VARIABLES, "1")
