"""Prompts with responses to other prompts: what KTO finds its baseline on."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from steps.training.examples import TokenGroup


def mismatched(groups: Sequence[TokenGroup]) -> list[TokenGroup]:
    """Each prompt with the responses of the group before it; the first with those of the last.

    A function of the order of all rows alone, so the reference can score them once.
    """
    return [
        replace(group, group_id=_both(group, before), responses=before.responses)
        for before, group in zip([groups[-1], *groups[:-1]], groups, strict=True)
    ]


def _both(prompt: TokenGroup, response: TokenGroup) -> str:
    joined = f"{prompt.group_id} with the response of {response.group_id}"
    return hashlib.sha256(joined.encode()).hexdigest()[:16]
