"""Models for programs without Python: libocc, and models as libraries and object files that C programs link with."""
