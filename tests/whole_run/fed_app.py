"""The server's app of a federation that is fed another world's releases; Flower loads it in a process of its own."""

import pickle
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privbo.flower.server import serve
from privbo.runs.manifest import RunDirectory
from tests.whole_run.worlds import Feed, same_secrets

EARLIER, MADE = "earlier.pickle", "made.pickle"  # beside the app's folder
APP = '''"""As privbo writes it, but for the server, which is fed."""

from pathlib import Path

from privbo.flower import client_app
from tests.whole_run.fed_app import fed_server

HOME = Path(__file__).parent
server = fed_server(Path({home!r}))
client = client_app(HOME)
'''


def fed_server(home: Path) -> ServerApp:
    """The shipped server, with the names and keys that every world has, fed and noted through files."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        earlier = home.parent / EARLIER
        feed = Feed(pickle.loads(earlier.read_bytes()) if earlier.exists() else None)  # noqa: S301 (the test wrote it)
        with same_secrets(), feed.at_work():
            serve(grid, home, RunDirectory(Path(str(context.run_config["directory"]))))
        (home.parent / MADE).write_bytes(pickle.dumps((feed.made, feed.drawn)))

    app.main()(main)
    return app
