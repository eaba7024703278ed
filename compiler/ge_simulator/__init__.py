"""A simulator of GE graphs: reads `.air` files and runs them with numpy.

It proves what `codegen_cann` emits, so it shares nothing with it: its own reader of the file format (through protobuf,
from its own statement of the schema) and its own statement of what each GE operator does, from the operators' headers.
"""
