"""The numpy interpreter of modules and te functions: the oracle of the tests."""
