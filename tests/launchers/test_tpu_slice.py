"""The script that runs an experiment on a TPU slice, with a `gcloud` that only pretends."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

GCLOUD = """#!/usr/bin/env bash
# State lies in files: what the slice is, and how often an experiment was started on one.
cd "$(dirname "$0")"
case "$*" in
*" create "*) echo create >> log; echo WAITING_FOR_RESOURCES > state ;;
*" describe "*)
    cat state
    if [ "$(cat state)" = WAITING_FOR_RESOURCES ]; then echo ACTIVE > state; fi ;;
*" delete "*) echo delete >> log; rm state ;;
*"--worker 0"*"hostname -I"*) echo "10.0.0.7 172.17.0.1" ;;
*"bin/ray start --head"*) echo "head" >> log ;;
*"bin/ray start --address 10.0.0.7:6379"*) echo "others" >> log ;;
*"venv/bin/python"*)
    all="$*"; echo "run ${all##*venv/bin/python }" >> log
    if [ -f taken ]; then rm taken; echo SUSPENDED > state; exit 255; fi
    if [ -f wrong ]; then exit 3; fi ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    return tmp_path


def run_script(place: Path) -> tuple[int, list[str]]:
    settings = {"NAME": "mine", "ZONE": "z", "TYPE": "v5p-8", "VERSION": "v", "POLL": "0"}
    ran = subprocess.run(
        [REPOSITORY / "examples/tpu_slice.sh", "experiments/sft.py", "name=two words"],
        env={
            **os.environ,
            **settings,
            "STORE": "gs://bucket/store",
            "PATH": f"{place}:{os.environ['PATH']}",
        },
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.returncode, (place / "log").read_text().splitlines()


RUN = r"run experiments/sft.py name=two\ words  launcher=ray store=gs://bucket/store"


def test_a_slice_that_is_taken_away_is_asked_for_again_and_given_back_at_the_end(
    place: Path,
) -> None:
    (place / "taken").touch()
    status, log = run_script(place)
    assert status == 0
    assert log == ["create", "head", "others", RUN, "delete"] * 2


def test_an_experiment_that_fails_is_not_run_again(place: Path) -> None:
    (place / "wrong").touch()
    status, log = run_script(place)
    assert status == 3
    assert log == ["create", "head", "others", RUN, "delete"]
