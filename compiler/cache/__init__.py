"""The build cache: compiled kernels, artifacts and tools, kept between builds."""
