"""Text generation with language models: decoders, KV caches, sampling, model folders."""
