"""Object stores: one way to S3, Google Cloud Storage, Azure Blob Storage and directories (contract 1.8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainbox.errors import PlatformError, TrainboxError, UserError

TIMEOUT_SECONDS = 1800.0
"""How long one object may take in all."""

# One request: obstore ends it after this time, and reading goes on where it stopped.
_REQUEST_SECONDS = 120
_RETRY_SECONDS = 90
_RETRIES = 8
# Connections that break one after the other without a byte in between.
_BROKEN = 5
_CHUNK = 8 * 1024 * 1024

# What containers get, and what users set; obstore knows them by these names.
_AWS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
    "AWS_METADATA_ENDPOINT", "AWS_SKIP_SIGNATURE", "AWS_REQUEST_PAYER",
)  # fmt: skip
_GOOGLE = (
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SKIP_SIGNATURE",
)  # fmt: skip
_AZURE = (
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR", "AZURE_SKIP_SIGNATURE",
    "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT",
)  # fmt: skip
_SCHEMES = ("s3", "gs", "az", "file")


def open_store(url: str, environ: Mapping[str, str]) -> Store:
    """The bucket (container, or for file:// the file system) that a URL names.

    environ: credentials, region and endpoint, as containers and users set them: keys, container credentials,
    web identity, else the metadata service; AWS_ENDPOINT_URL_S3, S3_ENDPOINT_URL or AWS_ENDPOINT_URL.
    Raises UserError when the URL names no store, or the extra `stores` is not installed.
    """
    scheme, bucket, _ = split(url)
    try:
        from obstore import exceptions
        from obstore import store as backends
    except ImportError:
        raise UserError(
            f"{url} needs the extra `stores`, which is not installed in this image",
            "install it there: pip install obstore",
        ) from None
    backend: Any
    try:
        if scheme == "file":
            backend = backends.LocalStore(prefix="/")
        elif scheme == "s3":
            backend = backends.S3Store(bucket, config=aws_config(environ), **_client(environ))
        elif scheme == "gs":
            backend = backends.GCSStore(bucket, config=_chosen(_GOOGLE, environ), **_client(environ))
        else:
            backend = backends.AzureStore(bucket, config=_chosen(_AZURE, environ), **_client(environ))
    except (exceptions.BaseError, ValueError) as error:
        raise UserError(f"cannot open {scheme}://{bucket}: {str(error).splitlines()[0]}") from None
    return Store(backend, f"{scheme}://{bucket}")


def split(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and key. The key is taken as it is: in a store's URL %, ? and # are ordinary letters."""
    scheme, sign, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not sign or scheme not in _SCHEMES or (not bucket and scheme != "file"):
        known = ", ".join(f"{known}://" for known in _SCHEMES)
        raise UserError(f"{url} names no object store", f"begin with one of {known} and a bucket's name")
    return scheme, bucket, key


def download(
    url: str, destination: str, environ: Mapping[str, str], check: Callable[[], None] = lambda: None
) -> None:
    """Writes the object that `url` names to the file `destination`.

    check: called every few megabytes; what it raises ends the download. Raises UserError or PlatformError.
    """
    open_store(url, environ).get(split(url)[2], destination, check=check)


class Store:
    """Objects of one bucket by their keys."""

    def __init__(self, backend: Any, root: str) -> None:
        self._backend = backend
        self.root = root

    def url(self, key: str) -> str:
        """The URL of a key, for messages."""
        return f"{self.root}/{key}"

    def get(
        self,
        key: str,
        destination: str,
        timeout: float = TIMEOUT_SECONDS,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Writes an object to a file and returns its size in bytes.

        A connection that breaks or stalls is taken up again where it stopped, if the object is still the
        same. timeout: seconds in all. check: as for `download`. Raises UserError (no such object or bucket,
        access denied) or PlatformError (the store does not answer, or the disk is full), with the URL in one
        line; a part of the file may then be left.
        """
        from time import monotonic

        deadline = monotonic() + timeout
        try:
            with open(destination, "wb") as file:
                return self._read(key, file, deadline, check)
        except OSError as error:
            raise PlatformError(
                f"cannot write {self.url(key)} to {destination}: {error.strerror or error}"
            ) from None

    def _read(self, key: str, file: Any, deadline: float, check: Callable[[], None]) -> int:
        from time import monotonic

        import obstore

        got, size, broken, etag = 0, -1, 0, None
        while got != size:
            before = got
            problem: Exception
            try:
                # The first time without a range, which an empty object does not have.
                options = {"range": {"offset": got}, "if_match": etag} if got else None
                result = obstore.get(self._backend, key, options=options)
                size, etag = result.meta["size"], result.meta["e_tag"]
                for chunk in result.stream(min_chunk_size=_CHUNK):
                    got += file.write(chunk)
                    check()
                    if monotonic() > deadline:
                        raise TimeoutError(f"{got} of {size} bytes in the time allowed")
                problem = EOFError(f"the answer ended after {got} of {size} bytes")
            except (FileNotFoundError, TimeoutError, obstore.exceptions.BaseError) as error:
                problem = error
            broken = 0 if got > before else broken + 1
            if got != size and (not got or broken >= _BROKEN or monotonic() > deadline):
                raise self._explained(key, problem)
        return got

    def _explained(self, key: str, error: Exception) -> TrainboxError:
        from trainbox.masking import mask_urls

        url = self.url(key)
        kind = type(error).__name__
        text = str(error)
        if isinstance(error, FileNotFoundError):
            what = "the bucket of " if "NoSuchBucket" in text or "ContainerNotFound" in text else ""
            return UserError(
                f"{what}{url} does not exist", "check the name, and that the upload was finished"
            )
        if kind in ("PermissionDeniedError", "UnauthenticatedError"):
            return UserError(
                f"access to {url} is denied: {_code(text) or 'the credentials do not allow it'}",
                "let the job's role read it, or check the credentials in the environment",
            )
        reason = mask_urls(text.splitlines()[0][:400] if text else kind)
        return PlatformError(f"cannot read {url}: {reason}", _next_step(text))


def _code(text: str) -> str:
    """The store's own error code out of the XML that it answers with."""
    return text.partition("<Code>")[2].partition("</Code>")[0]


def _next_step(text: str) -> str:
    if any(part in text for part in ("169.254.", "/latest/", "computeMetadata")):
        return "no credentials were found in the environment, and no metadata service answers"
    if "PermanentRedirect" in text or "AuthorizationHeaderMalformed" in text or "301" in text:
        return "the bucket is in another region: set AWS_REGION to it"
    return "check network and endpoint"


def _chosen(names: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in names if environ.get(name)}


def _endpoint(environ: Mapping[str, str]) -> str:
    names = ("AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL", "AWS_ENDPOINT_URL")
    return next((environ[name] for name in names if environ.get(name)), "")


def aws_config(environ: Mapping[str, str]) -> dict[str, str]:
    """obstore's configuration for S3 from the variables of a container (contract 2.1)."""
    config = _chosen(_AWS, environ)
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or environ.get("SAGEMAKER_REGION")
    endpoint = _endpoint(environ)
    if not endpoint and region and region.startswith("cn-"):
        endpoint = f"https://s3.{region}.amazonaws.com.cn"  # obstore knows the general domain only
    if region:
        config["AWS_REGION"] = region
    if endpoint:
        config["AWS_ENDPOINT_URL"] = endpoint.rstrip("/")
    return config


def _client(environ: Mapping[str, str]) -> dict[str, Any]:
    from datetime import timedelta

    return {
        "client_options": {
            "connect_timeout": timedelta(seconds=5),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
            "allow_http": _endpoint(environ).startswith("http://") or "AZURE_STORAGE_USE_EMULATOR" in environ,
        },
        "retry_config": {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
            "backoff": {
                "init_backoff": timedelta(milliseconds=200),
                "max_backoff": timedelta(seconds=10),
                "base": 2,
            },
        },
    }
