"""The kinds of language models: `LanguageModel` opens a folder as the one that knows it, once all are imported."""

from occ.generation.language_model import LanguageModel
from occ.generation.text_to_text import TextToText

__all__ = ["LanguageModel", "TextToText"]
