"""Ascend NPUs: GE graph IR for CANN, from named operators.

build.py         all of it in order: what the device can take, parts, graphs, files, plan
device_graphs.py the GE graphs of the parts; gears and ranges are one graph for several sizes
mapping/         which GE nodes stand for each operator, and which groups of nodes one kernel serves
graph/           nodes, GE's prototypes, the kernels of the chips, gears, ranges, precision
parts/           what runs on the device and what on the CPU, and the plan of the parts
output/          `.air` files, C++, the command of `atc`, the toolkit that makes `.om` files
"""
