"""Text from language models: a decoder with its cache, what chooses tokens, and the folders that models come in."""
