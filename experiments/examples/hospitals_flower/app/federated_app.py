"""What Flower loads on the server and at the hospitals."""

from pathlib import Path

from privbo.flower import client_app, server_app

HOME = Path(__file__).parent
server = server_app(HOME)
client = client_app(HOME)
