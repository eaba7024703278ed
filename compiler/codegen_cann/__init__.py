"""Ascend NPUs: GE graph IR for CANN, from named operators.

mapping.py, map_*.py   which GE nodes stand for each operator
emitter.py graph.py    nodes under construction, and the graphs they make
prototypes.py          GE's operators as their headers state them; validate.py checks nodes against them
air.py proto.py        the `.air` file: ge.proto.ModelDef
partition.py           what runs on the device and what on the CPU; islands.py, schedule.py: modules and plan of the parts
build.py               all of it in order; atc.py the command that makes `.om` files
"""
