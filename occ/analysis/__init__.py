"""Tools on models and artifacts: dump, inspect, diff, bench, report."""
