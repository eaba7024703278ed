"""From a model to an artifact: the compilation itself, sessions, rules and packages of users."""
