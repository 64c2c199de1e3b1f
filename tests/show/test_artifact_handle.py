"""What ``run()`` returns: artifacts with their files, their values, and a picture in a notebook."""

import pytest
from report_steps import HOSTILE, hostile, measure, prepare
from rich.console import Console

from pipeline import Step, Store, TemperError, run
from pipeline.show.artifact_handle import Made
from pipeline.show.views import views_of
from pipeline.store.catalog import Catalog
from pipeline.store.kinds import known_kind

pytestmark = pytest.mark.usefixtures("workers_here")


def made_of(step: Step, store: Store, console: Console) -> Made:
    return run({"it": step}, store, console=console)["it"]


@pytest.fixture
def measured(store: Store, console: Console) -> Made:
    return made_of(measure(prepare()), store, console)


def test_an_artifact_has_its_files_and_what_is_known_of_it(measured: Made, store: Store) -> None:
    (manifest,) = Catalog(store).history("measure")
    assert measured.manifest == manifest
    assert (measured.key, measured.digest) == (manifest.key, manifest.digest)
    assert measured.metrics["loss"] == 0.2
    assert measured.path.is_dir()
    assert (measured / "summary.md").read_text().startswith("## Measured")
    assert measured.url == str(measured.path)


def size(made: Made) -> str:
    kilobytes = sum(entry.size for entry in made.files.values()) / 1000
    return f"{kilobytes:.1f} kB"


def test_files_are_loaded_as_what_they_are(measured: Made) -> None:
    answers = measured.load("answers.jsonl")
    assert answers[0] == {"row": "0", "prompt": "What is 0?", "answer": "0.1"}
    everything = measured.load()
    assert [*everything] == ["answers.jsonl", "metrics.jsonl", "summary.md"]
    assert everything["metrics.jsonl"][-1]["loss"] == 0.2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("answer.jsonl", "no file or folder 'answer.jsonl'; did you mean answers.jsonl"),
        ("train", "has no file or folder 'train'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(measured: Made, name: str, message: str) -> None:
    with pytest.raises(TemperError, match=message):
        measured.load(name)


def test_of_lost_data_an_artifact_says_what_to_do(measured: Made, store: Store) -> None:
    store.evict(measured.manifest)
    for use in (lambda: measured.path, measured.load):
        with pytest.raises(TemperError, match=r"is not there any more.*a run that asks for it"):
            use()
    assert measured.metrics["loss"] == 0.2


def test_bytes_that_changed_on_the_disk_are_not_loaded(measured: Made) -> None:
    file = measured / "answers.jsonl"
    data = bytearray(file.read_bytes())
    data[data.index(b"0.1") + 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    for look in (
        measured.load,
        lambda: measured.load("answers.jsonl"),
        lambda: measured.records("answers.jsonl"),
        lambda: measured / "answers.jsonl",
    ):
        with pytest.raises(TemperError, match=r"answers.jsonl of .* temper verify measure"):
            look()
    assert measured.load("metrics.jsonl")[-1]["loss"] == 0.2
    assert (measured / "metrics.jsonl").is_file()
    (shown,) = views_of(measured, known_kind)
    assert "temper verify measure" in str(shown)


def test_of_a_bucket_the_files_are_a_checked_copy(gcs_bucket: str, console: Console) -> None:
    store = Store(f"{gcs_bucket}/made")
    made = made_of(measure(prepare()), store, console)
    assert made.url.startswith("gs://")
    assert {p.name for p in made.path.iterdir()} == {*made.files}
    assert made.path == made.path
    assert made.load("answers.jsonl")[2]["answer"] == "2.1"
    (made / "answers.jsonl").write_text("{}")
    with pytest.raises(TemperError, match=r"answers.jsonl of .* temper verify measure"):
        made.load()
    other = made_of(measure(prepare(), beta=0.5), store, console)
    path = f"{store.content_path(other.manifest)}/answers.jsonl"
    store.objects.replace(path, b"x" * other.files["answers.jsonl"].size)
    with pytest.raises(TemperError, match=r"answers\.jsonl is missing or damaged"):
        _ = other.path


def test_a_notebook_shows_metrics_curves_and_samples(measured: Made) -> None:
    html = measured._repr_html_()
    assert measured.name in html
    assert "0.2 (" not in html  # a number, and an interval with its ends
    assert "0.8 (0.7 – 1)" in html
    assert html.count("<svg") >= 2  # the loss, and a histogram
    assert "loss over step" in html
    assert "What is 0?" in html
    assert "<h4>Measured</h4>" in html


def test_nothing_in_a_picture_is_more_than_text(store: Store, console: Console) -> None:
    html = made_of(hostile(prepare(), HOSTILE), store, console)._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert 'onerror="' not in html
    assert not {"\x1b", "\u202e", "\u2066", "\x07"} & set(html)
