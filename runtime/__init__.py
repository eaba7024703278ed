"""The runtime: loads artifacts and runs them, with numpy and the standard library only.

Import it as `occ.runtime`.
"""

if __name__ != "occ.runtime":
    raise ImportError(f"import this package as `occ.runtime`, not `{__name__}`")
