"""Images of rows: their reading, checking and storage, and the tokens that stand for them.

In the text of a message, the character U+FFFC stands for an image (in Unicode it stands for an
object in plain text). The message's key `images` lists the images in order, each with the sha256 of
its bytes and its size. The bytes lie beside the rows, in `SPLIT/images/images-00000.parquet` and so
on, each image once.

Begin with ``finding``, which takes images out of records. ``pictures`` checks their bytes,
``image_table`` stores them, ``placeholders`` writes the tokens that stand for them, and
``images_of_rows`` returns them together with rows of tokens.

Uses ``rows``, and Pillow if there are images.
"""
