"""Ascend NPUs: GE graph IR for CANN, from named operators.

build.py         the whole build in order: support checks, parts, graphs, files, plan
device_graphs.py the GE graphs of the parts; gears and ranges are one graph for several sizes
mapping/         the GE nodes for each operator, and groups of nodes that one kernel replaces
graph/           nodes, GE's prototypes, the kernels of the chips, gears, ranges, precision
parts/           what runs on the device or on the CPU, and the plan of the parts
output/          `.air` files, C++, the command of `atc`, the toolkit that makes `.om` files
"""
