"""Several replicas of a reward server behind one address, on a Ray cluster.

    pip install -e '.[serve]' 'ray[serve]'
    python examples/serve/replicas.py default --replicas 2 --port 8000
    demerit score my_set --model http://127.0.0.1:8000

Each replica is the application of `demerit serve`, with its own model. Ray Serve spreads requests over them and
replaces one that dies. DEMERIT_TOKEN is the token that clients must send; beyond this machine (--host), there must be
one.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import Any

from ray import serve

from demerit.models import load_model
from demerit.use.serve.server import RewardApp
from demerit.web.uploads import ServeLimits


def make_application(names: list[str], replicas: int, cpus: float, gpus: float, token: str | None) -> Any:
    """Return what `serve.run` takes; the models are loaded in the replicas."""

    def build() -> Any:
        return RewardApp([load_model(name) for name in names], ServeLimits(), token).asgi

    resources = {"num_cpus": cpus, "num_gpus": gpus}
    deploy = serve.deployment(name="rewards", num_replicas=replicas, ray_actor_options=resources)
    return deploy(serve.ingress(build)()).bind()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--cpus", type=float, default=1, help="of a replica (default: %(default)s)")
    parser.add_argument("--gpus", type=float, default=0, help="of a replica (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    token = os.environ.get("DEMERIT_TOKEN")
    if given.host != "127.0.0.1" and not token:
        sys.exit("DEMERIT_TOKEN: expected a token for a server that others can reach, got none.")
    serve.start(http_options={"host": given.host, "port": given.port})
    application = make_application(given.models, given.replicas, given.cpus, given.gpus, token)
    with suppress(KeyboardInterrupt):
        serve.run(application, route_prefix="/", blocking=True)
    serve.shutdown()


if __name__ == "__main__":
    main()
