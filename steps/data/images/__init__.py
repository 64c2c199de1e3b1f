"""Images of rows: found, checked, kept once each, and their places among the tokens.

In the text of a message an image is the character U+FFFC (Unicode's stand-in for an object in plain
text); the message's key `images` has, in order, the sha256 of each one's bytes and its size. The
bytes lie beside the rows, in `SPLIT/images/images-00000.parquet` and so on.

``finding`` takes images out of records; begin there. ``pictures`` judges their bytes,
``image_table`` keeps them, ``placeholders`` writes the tokens that stand for them, ``of_tokens``
gives them to whoever reads rows of tokens.

Uses ``rows``, and Pillow; only rows with images reach either.
"""
