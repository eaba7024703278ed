"""Serving models: batches of requests, an MLServer runtime, and the server that `occ serve` starts.

`occ.serve.mlserver` needs MLServer (`pip install 'occ-compiler[mlserver]'`), `occ.serve.batching` nothing. Servers of
language models are `occ.serve.openai`.
"""
