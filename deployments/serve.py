"""The local runner: ``python -m deployments.serve`` offers `evaluate-run` as a deployment.

The dashboard, the Prefect UI and ``prefect deployment run evaluate-run/local`` start runs
through it.
"""

from __future__ import annotations

import argparse
import asyncio
import os

LOCAL = "local"
"""The name of the deployment of `evaluate-run`."""

POLL_S = 1.0
"""How often the runner asks for work; Prefect's own 10 s are felt by whoever waits."""


async def serve(*, webserver: bool) -> None:
    """Serve until the process is told to end; the deployment stays, and is not paused.

    Safe to run again: the deployment is registered under the same name.
    """
    from prefect.runner import Runner
    from prefect.types.entrypoint import EntrypointType

    from flows.evaluate_run import evaluate_run

    runner = Runner(
        name="weirbox", query_seconds=POLL_S, pause_on_shutdown=False, webserver=webserver
    )
    deployment = await evaluate_run.ato_deployment(
        LOCAL,
        description="Evaluate a suite, or go on with a run, on this machine.",
        tags=["weirbox"],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    await runner.aadd_deployment(deployment)
    await runner.start()


def main() -> None:
    """Serve, with a page for health checks where a port is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, help="answer health checks on this loopback port")
    port = parser.parse_args().port
    if port is not None:
        os.environ["PREFECT_RUNNER_SERVER_HOST"] = "127.0.0.1"
        os.environ["PREFECT_RUNNER_SERVER_PORT"] = str(port)
    asyncio.run(serve(webserver=port is not None))


if __name__ == "__main__":
    main()
