"""All formats, by name."""

from collections.abc import Mapping

from steps.data.formats import RecordFormat
from steps.data.formats.chat import ChatFormat, CompletionFormat
from steps.data.formats.plain_texts import HHFormat, ImplicitFormat, TextFormat
from steps.data.formats.preference import PreferenceFormat
from steps.data.formats.prompt import PromptFormat
from steps.data.formats.ranked import RankedFormat
from steps.data.formats.rated import RatedFormat
from steps.data.formats.tree import TreeFormat, TreePairsFormat
from steps.data.formats.unpaired import UnpairedFormat

FORMATS: Mapping[str, type[RecordFormat]] = {
    "preference": PreferenceFormat,
    "ranked": RankedFormat,
    "rated": RatedFormat,
    "implicit_prompt": ImplicitFormat,
    "hh_rlhf": HHFormat,
    "tree_pairs": TreePairsFormat,
    "chat": ChatFormat,
    "completion": CompletionFormat,
    "tree": TreeFormat,
    "prompt": PromptFormat,
    "unpaired": UnpairedFormat,
    "text": TextFormat,
}
