"""Loads artifacts and runs them. Imports numpy and the standard library, nothing else. Import it as `occ.runtime`."""

if __name__ != "occ.runtime":
    raise ImportError(f"import this package as `occ.runtime`, not `{__name__}`")
