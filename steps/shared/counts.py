"""Shares of whole numbers, without the rounding of a product."""


def share_of(share: float, whole: int) -> float:
    """`share` times `whole`; a whole number if the share is that number divided by `whole`.

    As floats, 0.07 · 100 is above 7, and 0.29 · 100 below 29: rounded up or down, they are off by
    one.
    """
    nearest = round(share * whole)
    return nearest if whole and nearest / whole == share else share * whole
