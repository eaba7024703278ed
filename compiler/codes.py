"""The diagnostic codes: one line and one explanation each, the text of `occ explain CODE`.

01 reading a model; 02 types and shapes; 03 target support; 04 toolchain; 05 running; 06 text, passes and options; 09
internal errors.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """The meaning of a code: a title, and an explanation with the usual remedy."""

    title: str
    explanation: str


CODES: dict[str, Code] = {
    "OCC0101": Code("the model file cannot be read", "The file does not exist, is a directory, or may not be read."),
    "OCC0102": Code(
        "the file is not an ONNX model",
        "The bytes are not a complete ONNX protobuf message. The usual causes are an incomplete download and a Git LFS"
        " pointer: compare the file's size with the original.",
    ),
    "OCC0103": Code(
        "the IR or operator-set version is not supported",
        "The model was written for a newer version of ONNX than this compiler knows. Re-export it with an older"
        " operator set, or update occ.",
    ),
    "OCC0104": Code(
        "unknown operator",
        "No operator of that name exists in the operator set that the model imports, and no model-local function"
        " defines it. `occ ops` lists the known operators. A custom operator needs a plugin or a model-local function.",
    ),
    "OCC0105": Code(
        "the graph is not well formed",
        "A node reads a value that nothing defines, a value is defined twice, or nodes depend on each other in a"
        " cycle. This is an error of the exporter that wrote the file; `onnx.checker` reports it too.",
    ),
    "OCC0106": Code(
        "external data cannot be used",
        "The model keeps weights in a file next to it, and that file is missing, too short, or named by a path that"
        " leaves the folder of the model. Copy the data file next to the model, under the name that the model uses.",
    ),
    "OCC0107": Code(
        "a node does not fit its operator",
        "Wrong number of operands, a missing or unknown attribute, or an attribute of the wrong type, according to the"
        " ONNX operator schema.",
    ),
    "OCC0108": Code("a tensor in the model is not valid", "The data of a tensor do not fit its shape or element type."),
    "OCC0109": Code(
        "the weights of a language model cannot be loaded as a model",
        "A GGUF file, or a folder of safetensors, has weights and a description but no graph; occ knows the graphs "
        "of some architectures. The file is of another one, is damaged, lacks a tensor, or keeps one in a way that "
        "is not known: the message says which. Export the model to ONNX, or download the file again.",
    ),
    "OCC0110": Code(
        "the PyTorch program cannot be exported to ONNX",
        "torch's exporter cannot write the program of a `.pt2` file, or of torch.export, as an ONNX model: for "
        "example, it has no rule for one of its operators. The message includes torch's reason.",
    ),
    "OCC0201": Code(
        "operand types do not fit the operator",
        "The element types of the operands are outside the type constraints of the ONNX operator schema.",
    ),
    "OCC0202": Code(
        "shapes do not fit the operator",
        "The extents of the operands contradict each other, for example two shapes that do not broadcast, or a weight"
        " and an input with different numbers of channels.",
    ),
    "OCC0203": Code(
        "a shape depends on run-time data",
        "An operand that decides the shape of a result (the `shape` of Reshape, the `starts` of Slice, ...) is computed"
        " from the data at run time. Set the input shapes with --shape, so that more of the graph can be evaluated.",
    ),
    "OCC0204": Code(
        "an input has no rank",
        "The model declares an input without a shape, and no operator that reads it, such as a Conv, determines "
        "its rank. Code is compiled for a fixed rank: set it with --shape, where a name keeps an extent symbolic.",
    ),
    "OCC0205": Code(
        "a shape or dim override does not fit",
        "--shape or --dim names an input or a dim that the model does not have, has a different rank, or contradicts"
        " a constant extent of the model.",
    ),
    "OCC0206": Code(
        "the result of an operator cannot be inferred",
        "Inference of the operator failed for these operands and attributes, without a reason. Usually the node "
        "is not valid ONNX; check it with `onnx.checker` and `full_check=True`. Otherwise occ does not support "
        "this case.",
    ),
    "OCC0301": Code(
        "the target does not support an operator",
        "`occ ops -t TARGET` lists what the target supports. `occ check MODEL -t TARGET` reports all such nodes of a"
        " model at once.",
    ),
    "OCC0302": Code(
        "the target does not support an element type",
        "The operator is supported, but not for this element type on this target.",
    ),
    "OCC0303": Code("unknown target", "`occ targets` lists the targets."),
    "OCC0305": Code(
        "the target needs constant extents",
        "Ascend models are compiled for fixed extents, or for a few sets of them (gears). Fix symbolic dims with "
        "--shape or --dim, or list gears with `-C dynamic_batch_size`, `dynamic_image_size` or `dynamic_dims`.",
    ),
    "OCC0306": Code(
        "the model needs Python at run time",
        "C programs run what is compiled, on tensors. The message names the nodes that Python runs: those on texts, "
        "sequences and optionals, and those that wait for the values of a run. Artifacts of such models run in Python.",
    ),
    "OCC0307": Code(
        "the precision mode of the build is too narrow for a node",
        "With the sample inputs of `--calibrate`, the node exceeds half precision, or loses more than 1 % of its "
        "largest value, and the chip has no kernel that would help. `-C precision_mode_v2` names the modes; "
        "`ascend910b` has fp32 everywhere.",
    ),
    "OCC0308": Code(
        "a kernel would run for days",
        "The extents of the node are far too large: usually it reduces the result of an Expand or a Range with a "
        "wrong size, or the `.occ` text was edited. Native code cannot be interrupted, so the build ends here.",
    ),
    "OCC0309": Code(
        "a tensor has more elements than kernels can count",
        "Kernels of `cpu` count elements with 32 bits, because vectors of 32-bit indices are fast. Kernels of "
        "`cpu-jit` use 64 bits for elements, and 32 for each extent. If sizes are symbolic, the run reports it "
        "instead (OCC0503).",
    ),
    "OCC0310": Code(
        "a size is not determined",
        "The plan has a size that no step computes, and that is not an extent of an input: inputs have only a product "
        "or a quotient of it. Fix it with --dim, or set another shape of the input with --shape. If the extents "
        "of all inputs are simple, this is a fault of occ: please report it with the model.",
    ),
    "OCC0311": Code(
        "the AI CPU of an Ascend chip runs a node",
        "AI Core has no kernel of the operator for its element types, or for extents that are not fixed. The AI CPU "
        "is correct but slow: each such node needs a call and copies between the units. The message says how to "
        "keep it on AI Core.",
    ),
    "OCC0401": Code(
        "no C++ compiler",
        "`-t cpu` makes kernels with a program that a C++ compiler compiles once, and bodies that users write in C++ "
        "need one each time. Install one (`apt install g++`), or name it in OCC_CXX, or build with `-O1` or "
        "`-t cpu-jit`, which need none. Wheels of `make wheels` have the program. Kernels in the build cache need no "
        "compiler: one machine exports them to a file (`occ cache --export FILE`), others import it "
        "(`occ cache --import FILE`).",
    ),
    "OCC0402": Code(
        "Halide is not installed",
        "`-t cpu` needs the `halide` package: `pip install halide`, which has wheels for x86-64 and Python up to 3.13."
        " `-t cpu-jit` works without it.",
    ),
    "OCC0403": Code(
        "the C++ compiler or the generator failed",
        "The message has the command line, the first lines of its output, and the path of the sources. This is a fault"
        " of occ unless the toolchain is broken: `occ doctor` checks that.",
    ),
    "OCC0404": Code(
        "no atc",
        "`atc`, the offline compiler of the CANN toolkit, turns the GE graph into an `.om` for the device. It is not "
        "in PATH: install the toolkit and source its `set_env.sh`, or copy the artifact to a machine that has it and "
        "build there. `--emit air` needs no toolkit.",
    ),
    "OCC0405": Code(
        "atc failed",
        "The command and the first lines of its output are in the message. Operators that this version of CANN lacks "
        "and an operator package that is not installed for the SoC are the usual causes.",
    ),
    "OCC0406": Code(
        "AscendCL is not installed",
        "Running on an Ascend device needs libascendcl.so of CANN (toolkit or nnrt). Source its `set_env.sh`, or "
        "name the library in OCC_ASCENDCL. `occ run --simulate` runs the same artifact without it.",
    ),
    "OCC0407": Code(
        "the device does not work",
        "There is no such Ascend device, its driver does not answer, or this user may not use it. `npu-smi info` "
        "lists the devices and their state.",
    ),
    "OCC0408": Code(
        "no workers",
        "`--workers` takes the address of a scheduler of dask.distributed (`dask scheduler`) with workers "
        "(`dask worker ADDRESS`) that have the same version of occ, and a C++ compiler: "
        "`pip install 'occ-compiler[workers]'`.",
    ),
    "OCC0409": Code(
        "a library that this needs is not installed",
        "Some libraries are optional: `occ quantize` uses onnxruntime.quantization "
        "(`pip install 'occ-compiler[quantize]'`), and reading programs of torch.export needs "
        "PyTorch (`pip install torch onnxscript`). Some releases of `onnx` do not work; the message names them.",
    ),
    "OCC0501": Code(
        "an input does not fit the model",
        "An input is missing or unknown, or its element type, rank or extents differ from the signature. `occ inspect`"
        " prints the signature.",
    ),
    "OCC0502": Code(
        "the artifact cannot be used",
        "The file is not an artifact, is damaged, or was written by a newer version of occ. Build it again.",
    ),
    "OCC0503": Code(
        "an assumption of the build does not hold for these inputs",
        "The build assumed that two dims are equal, or that one is not 0, because an operator requires it. The "
        "inputs of this run violate that. Fix the dim at build time with --dim or --shape.",
    ),
    "OCC0504": Code(
        "a node got invalid data",
        "For example an index outside of the tensor that Gather reads. The message names the node.",
    ),
    "OCC0505": Code(
        "a kernel failed", "A native kernel reported an error, such as memory that could not be allocated."
    ),
    "OCC0506": Code(
        "results differ",
        "The results differ from those of the oracle by more than the tolerance.",
    ),
    "OCC0507": Code(
        "a node has to be compiled at run time",
        "The shape of its result depends on the value of an operand, and that value is computed at run time. "
        "`occ.load` compiles the node then; a machine with only the runtime cannot. Fix the shapes with --shape "
        "and build "
        "again.",
    ),
    "OCC0508": Code(
        "the run takes too long",
        "--timeout bounds the whole time of `occ run`. If the number of iterations of a Loop depends on data, it "
        "may run for ever: check the inputs and the node that the message names. Kernels and loops in native code "
        "cannot be interrupted, so the run is in a separate process, which is killed.",
    ),
    "OCC0510": Code(
        "the model was compiled for another device",
        "An `.om` runs on the SoC that it was compiled for: build with `-C soc_version=` and the device's name in the"
        " message; `npu-smi info` shows it without the prefix `Ascend`. It also needs the CANN release that "
        "compiled it, or a newer one.",
    ),
    "OCC0511": Code(
        "device memory is exhausted",
        "The weights, the work space, or the inputs and outputs of a run do not fit into the device's memory or into"
        " `npu_mem_limit`. Other processes on the device count too: `npu-smi info` shows how much they use.",
    ),
    "OCC0512": Code(
        "a call of AscendCL failed",
        "The message names the call, its status and what the driver says. More is in the device's log: set"
        " ASCEND_SLOG_PRINT_TO_STDOUT=1 and ASCEND_GLOBAL_LOG_LEVEL=1.",
    ),
    "OCC0601": Code("the .occ text cannot be read", "The text does not follow the grammar, or uses an undefined name."),
    "OCC0602": Code("unknown pass or stage", "`occ dump --help` lists the stages; `occ opt --help` the passes."),
    "OCC0603": Code(
        "unknown option", "The key or value of a -C option is not one the target knows; the help lists them."
    ),
    "OCC0604": Code(
        "the weights of a .occ text are missing", "The weights file that the text refers to has moved or changed."
    ),
    "OCC0605": Code(
        "a file cannot be written",
        "The output path cannot be written, or has the name of another kind of file; nothing was left behind.",
    ),
    "OCC0606": Code(
        "the build takes too long",
        "The build took longer than --timeout. Use a larger one, or leave it out.",
    ),
    "OCC0607": Code(
        "the build takes too much memory",
        "--memory-limit bounds the memory of the process, and of each compiler that it starts. Mapped files do "
        "not count.",
    ),
    "OCC0610": Code(
        "a rule is not well formed",
        "A rule names an operator, attribute or value that does not exist, has no pattern or no replacement, or its "
        "file cannot be loaded. docs/guide-fusion.md shows how rules are written.",
    ),
    "OCC0611": Code(
        "rules undo each other",
        "The rules keep matching each other's results. Add a `when` to one of them that rejects the results of "
        "the other, or drop one.",
    ),
    "OCC0612": Code(
        "the code of a rule failed",
        "A `when` condition or a replacement raised an exception, or built an op that is not valid. The notes name the"
        " line.",
    ),
    "OCC0613": Code(
        "a rule is wrong",
        "`occ check-rules` found operands for which the pattern and its replacement give different results. The"
        " counterexample is an .occ file that computes both.",
    ),
    "OCC0614": Code(
        "a pass changed a value",
        "With --validate the model is interpreted before and after every pass; after this one a value is different."
        " `occ bisect` narrows it down.",
    ),
    "OCC0615": Code(
        "a user's kernel cannot be used",
        "The library is missing, has no such function, or its prototype does not fit the operands, results and "
        "attributes of the operator; or the target cannot use a kernel of that kind. docs/guide-operator.md shows "
        "what is possible.",
    ),
    "OCC0616": Code(
        "the code of an operator failed",
        "The `body`, `composite` or `infer` of an operator that a rule file or a package defines raised an "
        "exception. The notes name it and the line.",
    ),
    "OCC0617": Code(
        "the model cannot be quantised",
        "It is already quantised, its weights are not in f32, none of its operators can be quantised, or "
        "onnxruntime's quantiser fails on it. docs/quantize.md lists what each form requires; `--keep` and "
        "`--operators` leave nodes out.",
    ),
    "OCC0901": Code(
        "internal error",
        "A fault of occ. The message has the path of a reproducer: one .occ file that fails the same way.",
    ),
    "OCC0902": Code(
        "a pass broke the module",
        "After a pass the module did not verify. The reproducer contains the module before that pass.",
    ),
}
