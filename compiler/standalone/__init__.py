"""Models for programs without Python: libocc, and models as C libraries."""
