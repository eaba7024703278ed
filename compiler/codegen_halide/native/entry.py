"""Compiles LLVM IR with llvmlite: `python3 entry.py entry.ll entry.o`. `clang -O1 -fPIC -c entry.ll` does the same."""

import sys
from pathlib import Path

import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
module = llvm.parse_assembly(Path(sys.argv[1]).read_text())
machine = llvm.Target.from_triple(module.triple).create_target_machine(opt=1, reloc="pic", codemodel="default")
Path(sys.argv[2]).write_bytes(machine.emit_object(module))
