"""The numpy oracle: runs modules and te functions with no generated code."""
