"""How a config says that it cannot be."""


def require(holds: bool, rule: str, value: object) -> None:
    """Raises ValueError with `rule`, which names the field, and the value that breaks it."""
    if not holds:
        raise ValueError(f"{rule}, got {value!r}")
