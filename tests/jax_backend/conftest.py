"""JAX has as many processors for good as the first to ask for some needs."""

from contextlib import suppress

import pytest


@pytest.fixture(scope="session", autouse=True)
def eight_devices() -> None:
    """Ask for all of them before any test here asks for two."""
    with suppress(ImportError):  # then every test here is skipped
        import jax

        assert len(jax.devices()) == 8
