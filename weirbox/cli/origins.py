"""What asks for a run: options of the command line, or the environment of a CI job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from weirbox.domain.run import Origin
from weirbox.errors import NotPossible


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options that say what a run is for."""

    repository: str | None
    pull_request: str | None
    commit: str | None
    branch: str | None

    def origin(self, environ: Mapping[str, str] | None) -> Origin:
        """What the options say, and the environment where they say nothing.

        Args:
            environ: A CI job's, if that was asked for.

        Raises:
            NotPossible: When the environment is of no known CI, or a pull request is of no
                repository: it could supersede nothing.
        """
        known = {} if environ is None else _of_ci(environ)
        given = {name: value for name, value in asdict(self).items() if value is not None}
        origin = Origin(**(known | given))
        if origin.pull_request is not None and origin.repository is None:
            raise NotPossible(
                f"pull request {origin.pull_request!r} is of no repository: give --repository, too"
            )
        return origin


def _of_ci(environ: Mapping[str, str]) -> dict[str, str]:
    if environ.get("GITHUB_ACTIONS") == "true":
        found = _of_github(environ)
    elif environ.get("GITLAB_CI") == "true":
        found = _of_gitlab(environ)
    else:
        raise NotPossible(
            "--ci reads the environment of GitHub Actions and GitLab CI, and this is neither; "
            "give --repository and --pull-request instead"
        )
    return {name: value for name, value in found.items() if value}


def _of_github(environ: Mapping[str, str]) -> dict[str, str | None]:
    """https://docs.github.com/actions/reference/workflows-and-actions/variables; the commit
    of a pull request is that of its merge into the base."""
    pull = re.fullmatch(r"refs/pull/(\d+)/\w+", environ.get("GITHUB_REF", ""))
    server, repository = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_REPOSITORY")
    job = environ.get("GITHUB_RUN_ID")
    known = server and repository and job
    return {
        "repository": repository,
        "pull_request": pull and pull[1],
        "commit": environ.get("GITHUB_SHA"),
        "branch": environ.get("GITHUB_HEAD_REF") or environ.get("GITHUB_REF_NAME"),
        "actor": environ.get("GITHUB_ACTOR"),
        "url": f"{server}/{repository}/actions/runs/{job}" if known else None,
    }


def _of_gitlab(environ: Mapping[str, str]) -> dict[str, str | None]:
    """https://docs.gitlab.com/ci/variables/predefined_variables/"""
    return {
        "repository": environ.get("CI_PROJECT_PATH"),
        "pull_request": environ.get("CI_MERGE_REQUEST_IID"),
        "commit": environ.get("CI_COMMIT_SHA"),
        "branch": environ.get("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME")
        or environ.get("CI_COMMIT_REF_NAME"),
        "actor": environ.get("GITLAB_USER_LOGIN"),
        "url": environ.get("CI_PIPELINE_URL"),
    }
