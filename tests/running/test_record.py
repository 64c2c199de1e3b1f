"""What the record of a run keeps of a command line: never a secret, and all else."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import script

from pipeline import Store
from pipeline.base.redaction import shown, without_secrets
from pipeline.running import record
from pipeline.running.session import RunFailed

SECRET = "x7/S3cr3t"
ask_git = inspect.unwrap(record.git_state)  # tests ask once a folder, see `conftest`


@pytest.mark.parametrize(
    "words",
    [
        ["--token={}"], ["--token", "{}"], ["-token", "{}"], ["--hf-token", "{}"],
        ["--password", "{}"], ["--api-key", "{}"], ["--client-secret", "{}"], ["token={}"],
        ["auth={}"], ["passwd={}"], ["key={}"], ["wandb.api_key={}"], ["+hub.authToken={}"],
        ["HF_TOKEN={}"], ["AZURE_ACCOUNTKEY={}"], ["GOOGLE_APPLICATION_CREDENTIALS={}"],
        ["hub={{name: a, token: {}}}"], ['--config={{"api_key": "{}"}}'], ["password={}\n{}"],
        ["AccountName=a;AccountKey={}"], ["-H", "Authorization: Bearer {}"], ["Bearer", "{}"],
        ["authorization: Basic {}"], ["a Bearer {}"],
        ["https://b.s3/x?part=1&X-Amz-Signature={}"], ["https://b/x?sv=1&sig={}&se=2"],
        ["url=https://user:{}@host/x"],
    ],
)  # fmt: skip
def test_a_secret_is_not_kept(words: list[str]) -> None:
    arguments = [word.format(SECRET, SECRET) for word in words]
    kept = without_secrets(["train.py", *arguments, "last"])
    assert kept[0] == "train.py"
    assert kept[-1] == "last"
    assert "…" in "".join(kept)
    assert "S3cr3t" not in "".join(kept)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://user:pw@host/x", "https://…@host/x"),
        ("https://user:p@w@host/x?a=b", "https://…@host/x?a=b"),
        ("https://ghp_1234@host/x", "https://…@host/x"),
        ("s3://AKIA:wJ/al/r@bucket/x", "s3://…@bucket/x"),
        ("simplecache::s3://k:s@b/x", "simplecache::s3://…@b/x"),
        ("https://b/x?sv=1&sig=abc%2B&se=2", "https://b/x?sv=1&sig=…&se=2"),
        ("cannot read http://u:pw@h:9/x: refused", "cannot read http://…@h:9/x: refused"),
        ("'-H', 'Authorization: Basic dTpzay0xMjM0', 'x'", "'-H', 'Authorization: Basic …', 'x'"),
    ],
)
def test_a_url_loses_its_secrets_and_nothing_else(url: str, kept: str) -> None:
    assert shown(url) == kept


def test_a_key_in_the_environment_is_redacted_and_what_only_says_where_keys_are_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-S3cr3t/abcdef+0123=")
    places = {"GOOGLE_APPLICATION_CREDENTIALS": "/home/me/credentials.json",
              "TOKEN_URL": "https://host/oauth/tokens", "SECRET_ID": "1234567890123456",
              "CACHE_KEY": "linux", "STORE_KEY": "longer-answers/store"}  # fmt: skip
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    assert shown("401: invalid key sk-S3cr3t/abcdef+0123=, see x") == "401: invalid key …, see x"
    told = f"cannot read {' or '.join(places.values())}"
    assert shown(told) == told


@pytest.mark.parametrize(
    "argument",
    ["dpo.beta=0.05", "sampling.max_new_tokens=8", "model.tokenizer=gpt2", "sort_keys=true",
     "author=me", "monkey=1", "signal=9", "passes=2", "--keep-last", "store=gs://bucket/store",
     "store=abfs://box@account.dfs.core.windows.net/x", "hf://datasets/user/name@main",
     "http://localhost:8080/a@b", "/home/me/token/train.py", "data.path=C:\\data"],
)  # fmt: skip
def test_what_is_no_secret_is_kept(argument: str) -> None:
    assert without_secrets(["train.py", argument, "next"]) == ["train.py", argument, "next"]


@pytest.mark.usefixtures("workers_here")
def test_nothing_that_a_run_records_has_the_secrets_of_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-S3cr3t-0123456789")
    Path("recorded.py").write_text(
        "import os\n"
        "from pipeline import Output, run, step\n"
        "@step\n"
        "def connect(out: Output) -> None:\n"
        "    key = os.environ['OPENAI_API_KEY']\n"
        "    raise ValueError(f'no answer from https://user:S3cr3t@host/x with the key {key}')\n"
        "if __name__ == '__main__':\n"
        "    run([connect()], 'store')\n"
    )
    with pytest.raises(RunFailed):
        script("recorded.py", "--token", "S3cr3t", "--jobs", "2")
    (path,) = (tmp_path / "store" / "runs").iterdir()
    for file in [file for file in (tmp_path / "store").rglob("*") if file.is_file()]:
        assert b"S3cr3t" not in file.read_bytes()
    kept = json.loads(path.read_text())
    assert kept["argv"][-4:] == ["--token", "…", "--jobs", "2"]
    assert "no answer from https://…@host/x" in kept["steps"][0]["message"]


USES_KEYS = """
import os, subprocess, sys, urllib.request
from pathlib import Path
from pipeline import Output, run, step

@step
def use(out: Output, fails: bool) -> dict[str, str]:
    (out.scratch / "half").write_text("half")
    (out.path / "whole").write_text("whole")
    for key in (os.environ["SERVICE_TOKEN"], os.environ["ELSEWHERE"]):
        subprocess.run([sys.executable, "-c", "pass", "--token", key], check=True)
        subprocess.run(["true", f"--api-key={key}", "--password", key, f"relative/{key}"])
        subprocess.run(["true", "-H", f"Authorization: Bearer {key}", "-H", f"X-Api-Key: {key}"])
        subprocess.run(f"true https://me:{key}@localhost/x?token={key}; true", shell=True)
        for url in (f"http://127.0.0.1:9/x?api_key={key}", f"https://me:{key}@127.0.0.1:9/x"):
            assert not os.path.exists(url)
            try:
                asked = urllib.request.Request(url, headers={"X-Api-Key": key})
                urllib.request.urlopen(asked)
            except OSError:
                print("no answer from", url, asked.headers)
        told = "import sys; print(sys.argv)"
        subprocess.run([sys.executable, "-c", told, "--token", key])
        if fails and key != os.environ["SERVICE_TOKEN"]:
            subprocess.run(["false", "--token", key], check=True)
    return {"asked": f"http://127.0.0.1:9/x?api_key={key}"}

if __name__ == "__main__":
    run([use(fails="fails" in sys.argv)], "store")
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_no_file_of_a_store_or_scratch_has_the_keys_that_a_step_used(
    fails: bool, tmp_path: Path
) -> None:
    """In commands, URLs, headers and variables; one key is known by its variable, one is not."""
    (tmp_path / "keyed.py").write_text(USES_KEYS)
    (tmp_path / "tmp").mkdir()
    keys = {"SERVICE_TOKEN": "zk-A1b2C3d4E5f6-known", "ELSEWHERE": "zk-A1b2C3d4E5f6-other"}
    places = {"TMPDIR": str(tmp_path / "tmp"), "TEMPER_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "keyed.py", *["fails"] * fails],
        cwd=tmp_path, env={**os.environ, **keys, **places}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == int(fails), done.stderr
    assert "A1b2C3d4E5f6" not in done.stdout + done.stderr
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(".observed" in file.parts for file in files) is fails  # what a failed step left
    for file in files:
        assert b"A1b2C3d4E5f6" not in file.read_bytes(), file
    assert "…" in next(file for file in files if file.name == "log.txt").read_text()


def test_the_commit_and_a_digest_of_the_changes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert ask_git() == {}

    def git(*words: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.check_output(["git", *named, *words], text=True).strip()

    git("init", "-q")
    (file := tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "One")
    clean = ask_git()
    assert clean == {"commit": git("rev-parse", "HEAD"), "dirty": None}
    seen = []
    for text in ("2", "3", "\0binary 4", "\0binary 5"):
        file.write_text(text)
        seen.append(ask_git())
    (tmp_path / "new.py").write_text("4")
    seen.append(ask_git())
    assert all(state["commit"] == clean["commit"] for state in seen)
    assert len({state["dirty"] for state in seen} | {None}) == 6
    file.write_text("1")
    (tmp_path / "new.py").unlink()
    assert ask_git() == clean


@pytest.mark.parametrize(
    ("typed", "script", "name"),
    [
        (["train.py", "data=x.py"], "train.py", "train"),
        (["-m", "mine", "data=x.py"], "/home/mine/__main__.py", "mine"),
        (["-m", "mine.train"], "/home/mine/train.py", "train"),
        (["train.py", "-m", "seed=1,2"], "train.py", "train"),
    ],
)
def test_an_experiment_is_called_after_its_script_or_package(
    typed: list[str], script: str, name: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", *typed])
    monkeypatch.setattr(sys, "argv", [script, *typed[1:]])
    assert record.RunRecord.begin({}, store).experiment == name


def test_no_function_of_the_core_writes_json_that_is_not_redacted(repository: Path) -> None:
    """All compose it by `redaction.record`, so that no new record can have a key."""
    writes = r"objects\.(create|replace)\(|write_(text|bytes)\(|_append\(|def to_json\("
    looks = re.compile(rf"{writes}|return json\.dumps?\(.*\.encode\(")
    found = [
        f"{file.stem}.{node.name}"
        for file in (repository / "pipeline").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and "json.dump" in (text := ast.unparse(node))
        and looks.search(text)
    ]  # fmt: skip
    assert found == ["redaction.exact_record"]
