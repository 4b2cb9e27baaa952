"""Zoom: all clients score the same few candidates; go to the best on average and look closer."""

from dataclasses import dataclass, replace

import numpy as np

from privbo.protocol.messages import Ask, Broadcast, ClientHistory, Request


@dataclass(frozen=True, kw_only=True)
class Zoom:
    n_candidates: int = 8
    shrink: float = 0.6
    alone: bool = False  # the control: nothing shared, so as many random candidates
    caveat = None  # a sentence for the report, where settings give something up
    is_certified = False  # True would refuse clipping norms that adapt

    def server(self, setting):
        return Server(self, setting)

    def cohort(self, setting, *, clients, evaluate, seed):
        return Cohort(clients, evaluate, setting.space.n_dims)

    def local(self):
        return replace(self, alone=True)


class Server:  # public: deterministic, and told releases only
    def __init__(self, zoom, setting):
        k, n = zoom.n_candidates, setting.n_clients  # k scores of at most 1/2 in size: norm <= sqrt(k)/2
        mean = Request(dim=k, clipping_norm=np.sqrt(k) / 2, weights=np.full((1, n), 1 / n))
        self.zoom, self.setting, self.request = zoom, setting, None if zoom.alone else mean
        self.round, self.centre, self.width = 0, np.full(setting.space.n_dims, 0.5), 1.0

    def plan(self):  # every request of the run, before the run: this is what is priced
        return iter([] if self.zoom.alone else [self.request] * self.setting.rounds)

    def ask(self):
        if self.round >= self.setting.rounds:
            return None
        random = np.random.default_rng([self.setting.public_seed, self.round])
        moves = random.uniform(-0.5, 0.5, (self.zoom.n_candidates, len(self.centre)))
        self.candidates = np.clip(self.centre + self.width * moves, 0, 1)
        return Ask(broadcast=Broadcast(round=self.round, arrays={"candidates": self.candidates}), request=self.request)

    def tell(self, release):  # the noisy mean of the clients' vectors, (1, k); None if nothing was asked for
        if release is not None:
            self.centre = self.candidates[release.values[0].argmax()]
            self.width *= self.zoom.shrink
        self.round += 1


class Cohort:  # private: one or many clients
    def __init__(self, clients, evaluate, n_dims):
        self.clients, self.evaluate, n = clients, evaluate, len(clients)
        self.state = {"units": np.empty((n, 0, n_dims)), "values": np.empty((n, 0)), "rounds": np.empty(0, dtype=int)}

    def respond(self, broadcast):
        if broadcast.round not in self.state["rounds"]:  # a repeated question gets the same answer
            n, points = len(self.clients), broadcast.arrays["candidates"]
            units = np.tile(points, (n, 1, 1))
            values = self.evaluate(np.repeat(self.clients, len(points)), units.reshape(n * len(points), -1))
            new = {"units": units, "values": values.reshape(n, -1), "rounds": np.full(len(points), broadcast.round)}
            self.state = {k: np.concatenate([v, new[k]], axis=int(v.ndim > 1)) for k, v in self.state.items()}
        return self.state["values"][:, self.state["rounds"] == broadcast.round] - 0.5  # scores lie in [0, 1]

    def snapshot(self):
        return self.state

    def restore(self, snapshot):
        self.state = dict(snapshot)

    def history(self):
        best = np.nan_to_num(self.state["values"], nan=-np.inf).argmax(axis=1)
        return ClientHistory(**self.state, recommended=self.state["units"][np.arange(len(best)), best])
