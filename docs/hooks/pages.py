"""What MkDocs does with Temper's pages (a hook of ``mkdocs.yml``).

The site shows README.md as its first page, the pages that lie beside the code that they describe,
and the pages that ``reference`` writes. A link to a file that is no page, such as a module, becomes
plain text: the site has no such file.
"""

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

from reference import FROM_ABOVE, SCHEMAS, pages  # noqa: E402
from sentences import long_sentences  # noqa: E402

log = logging.getLogger("mkdocs.hooks")

_PAGE_OF = {SCHEMAS: "reference/data_sets.md", **{f: page for page, f in FROM_ABOVE.items()}}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that do not lie in ``docs/``."""
    texts = {page: (REPOSITORY / file).read_text("utf-8") for page, file in FROM_ABOVE.items()}
    for address, text in {**texts, **pages()}.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links to files of the repository to their pages, or make them plain text.

    A long sentence is a warning, as a broken link is: with --strict, both are errors.
    """
    address = page.file.src_uri
    if address == "index.md" or (REPOSITORY / "docs" / address).is_file():
        for sentence in long_sentences(markdown):
            log.warning("%s: a sentence of %s", address, sentence)
    folder = (Path(FROM_ABOVE[address]) if address in FROM_ABOVE else Path("docs", address)).parent

    def pointed(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        file = os.path.normpath(folder / target)
        if not (REPOSITORY / file).exists():
            return link[0]  # a page that is generated, or a mistake, which MkDocs reports
        goal = _PAGE_OF.get(file) or os.path.relpath(file, "docs")
        if files.get_file_from_path(goal) is None:
            return text
        return f"[{text}]({os.path.relpath(goal, os.path.dirname(address))}{anchor or ''})"

    return _LINK.sub(pointed, markdown)
