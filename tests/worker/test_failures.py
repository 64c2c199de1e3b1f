"""Which exceptions are messages: what somebody wrote for whoever reads it, and nothing else."""

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pipeline import TemperError
from pipeline.uncaught.user_errors import message_of
from pipeline.worker.calling import checked_metrics
from pipeline.worker.failure import failure_of
from steps.data.formats.choice import FormatChoice
from steps.data.load.split_names import splits_of


def raised_by(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call()
    return raised.value


def own_bug() -> None:
    int("many")


def own_message() -> None:
    raise LookupError("there is no such row; name another")


def own_assertion() -> None:
    assert not len("x"), "never"


def wrapped() -> None:
    try:
        raise OSError(errno.ENOSPC, "No space left on device", "/x")
    except OSError as error:
        raise ValueError("cannot be written") from error


def test_a_library_s_raise_statement_is_a_message_and_its_bug_is_none() -> None:
    """Both are exceptions of Python's, from modules that know nothing of the core."""
    refused = raised_by(lambda: FormatChoice("preferences"))
    assert str(message_of(refused)).startswith("unknown format 'preferences'")
    bug = raised_by(lambda: splits_of([None]))  # type: ignore[list-item]
    assert message_of(bug) is None


def test_a_step_s_raise_statement_is_a_message_and_an_expression_s_error_is_a_bug() -> None:
    said = failure_of(raised_by(own_message), __name__)
    assert said.message == "LookupError: there is no such row; name another"
    assert said.excerpt == ()
    for call, message in (
        (own_bug, "ValueError: invalid literal for int() with base 10: 'many'"),
        (own_assertion, "AssertionError: never"),
    ):
        failure = failure_of(raised_by(call), __name__)
        assert failure.message.startswith(message)
        assert any("test_failures.py, line" in line for line in failure.excerpt)


def test_a_full_disk_is_known_whoever_has_met_it() -> None:
    told = failure_of(raised_by(wrapped), __name__).message
    assert told.startswith("no space is left on a disk ([Errno 28] No space left on device: '/x')")


def test_an_exception_of_temper_s_is_told_as_it_is() -> None:
    assert message_of(TemperError("one;\n two")) == "one; two"
    assert message_of(KeyError("x")) is None


def test_numbers_of_numpy_and_torch_are_kept_as_plain_numbers() -> None:
    numbers = {"loss": np.float32(0.5), "of": [torch.tensor(3)], "by": {"a": np.int64(2)}}
    assert checked_metrics("mine", numbers) == {"loss": 0.5, "of": [3], "by": {"a": 2}}
    with pytest.raises(TemperError, match="of is "):
        checked_metrics("mine", {"of": np.zeros(2)})
    with pytest.raises(TemperError, match="of is a whole number of 5001 digits"):
        checked_metrics("mine", {"of": 10**5000})  # which Python refuses to write
