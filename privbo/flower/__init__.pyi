from privbo.flower.answers import client_app as client_app
from privbo.flower.server import server_app as server_app
