"""The versions and the hardware with which a model was exported."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

_PACKAGES = ("temper", "torch", "transformers", "tokenizers", "peft")


def made_with() -> dict[str, str]:
    """The versions of installed packages and the devices of this machine, by name."""
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, "exported on": _hardware()}


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"CPU, {platform.machine()}, {os.cpu_count()} cores"
