"""A simulator of GE graphs: reads `.air` files and runs them with numpy.

It validates what `codegen_cann` emits, so it shares nothing with it: it has its own reader of the file format (through
protobuf, from its own copy of the schema) and its own definition of each GE operator, from the operators' headers.
"""
