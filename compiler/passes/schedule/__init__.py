"""To stage `scheduled`: how the loops of a te function run."""
