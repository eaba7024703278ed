"""From a model to an artifact: compilation, sessions, plug-ins."""
