"""Plans of native code: the engine that runs them."""
