"""Fuzzers: random graphs against other runtimes (`graphs`), and damaged files (`bytes`). See docs/fuzzing.md."""
