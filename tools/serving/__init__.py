"""Load on servers of OpenAI's protocol: `occ serve`, or another one to compare with."""
