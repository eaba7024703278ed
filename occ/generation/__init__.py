"""Text generation with language models: decoders, KV caches, sampling, model folders."""

from occ.generation import text_to_text as text_to_text  # a kind of LanguageModel, which opens folders with an encoder
