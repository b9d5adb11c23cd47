"""The package index of an AWS CodeArtifact repository (contract 4.3)."""

from __future__ import annotations

import re

from trainbox.errors import PlatformError, UserError

_TOKEN_SECONDS = 60


def index_url(arn: str) -> str:
    """URL of a CodeArtifact repository's index, with a token in it: a secret.

    The token comes from boto3, else from the aws command. Raises UserError for an ARN that is none or when
    there is neither, PlatformError when the service gives no token.
    """
    name = "([A-Za-z0-9._-]+)"
    match = re.fullmatch(rf"arn:(aws[a-z-]*):codeartifact:([a-z0-9-]+):(\d+):repository/{name}/{name}", arn)
    if not match:
        raise UserError(
            f"CA_REPOSITORY_ARN is {arn!r}",
            "expected arn:aws:codeartifact:REGION:ACCOUNT:repository/DOMAIN/REPOSITORY",
        )
    partition, region, owner, domain, repository = match.groups()
    token = _token(region, owner, domain)
    suffix = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    return f"https://aws:{token}@{domain}-{owner}.d.codeartifact.{region}.{suffix}/pypi/{repository}/simple/"


def _token(region: str, owner: str, domain: str) -> str:
    from importlib import import_module

    try:
        boto3 = import_module("boto3")
    except ImportError:
        return _token_from_command(region, owner, domain)
    try:
        client = boto3.client("codeartifact", region_name=region)
        return str(client.get_authorization_token(domain=domain, domainOwner=owner)["authorizationToken"])
    except Exception as error:  # botocore's errors have no common class that boto3 exports
        raise _no_token(domain, str(error)) from None


def _token_from_command(region: str, owner: str, domain: str) -> str:
    import shutil
    import subprocess

    aws = shutil.which("aws")
    if not aws:
        raise UserError(
            "CA_REPOSITORY_ARN is set, and neither boto3 nor the aws command is there to get a token",
            "install boto3 in the image, or set PIP_INDEX_URL instead",
        )
    argv = [aws, "codeartifact", "get-authorization-token", "--domain", domain, "--domain-owner", owner]
    argv += ["--region", region, "--query", "authorizationToken", "--output", "text"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TOKEN_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        raise _no_token(domain, error.stderr) from None
    except (OSError, subprocess.TimeoutExpired):
        raise _no_token(domain, f"{aws} did not answer") from None
    return done.stdout.strip()


def _no_token(domain: str, reason: str) -> PlatformError:
    last = (reason.strip().splitlines() or ["no reason given"])[-1][:400]
    return PlatformError(
        f"no token for the CodeArtifact domain {domain}: {last}",
        "let the job's role call codeartifact:GetAuthorizationToken and sts:GetServiceBearerToken",
    )
