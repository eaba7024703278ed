"""The target `interp`: artifacts that hold a module as text, and the engine that interprets them."""

TEXT = "ir/canonical.occ"  # the member that is interpreted
