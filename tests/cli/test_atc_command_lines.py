"""Command lines of `atc` as users have written them in public reports and scripts: each is taken, or refused with the remedy.

The models are small ones with the inputs that the lines name; what is tested is the command line.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import onnx
import pytest
from onnx import TensorProto, helper

GEARS_50 = ";".join(map(str, range(1, 51)))
MIXLIST = '{"black-list": {"to-add": ["ReduceMean"]}}'
AIPP = "aipp_op { aipp_mode: static input_format: RGB888_U8 src_image_size_w: 416 src_image_size_h: 416 }"
_OWN = {"ops_info.json": MIXLIST, "aipp.cfg": AIPP}


@dataclass(frozen=True)
class Line:
    """A command line, the inputs that its model declares, and what must be said if it is refused."""

    source: str
    typed: str
    inputs: str  # NAME:1,3,n,w;...
    refused: str = ""
    chip_missing: str = ""  # what is said where no target has the chip yet


LINES = [
    Line("Tlntin/qwen-ascend-llm#11", "--framework=5 --model=m.onnx --output=m --soc_version=Ascend310P3 --precision_mode_v2=mixed_float16 "
         "--modify_mixlist=ops_info.json --input_format=ND --input_shape='input_ids:1,-1;attention_mask:1,-1;past_key_values:1,-1,4,8' "
         "--dynamic_dims '1,1025,1024;2,1026,1024;4,1028,1024'", "input_ids:1,s;attention_mask:1,a;past_key_values:1,p,4,8"),
    Line("Tlntin/qwen-ascend-llm#5", "--framework=5 --model=m.onnx --output=m --soc_version=Ascend310B1 --precision_mode_v2=mixed_float16 "
         "--modify_mixlist=ops_info.json --input_format=ND --input_shape='input_ids:1,-1' --dynamic_dims '1;2;4'", "input_ids:1,s",
         chip_missing="Ascend310B1"),
    Line("lijiaqi0612/UIE-ACL-310#2", "--model=./m.onnx --framework=5 --output=./m --soc_version=Ascend310", "x:1,8"),
    Line("Ascend/ModelZoo-PyTorch#6", "--framework=5 --model=./m.onnx --output=./unet --input_format=NCHW --log=error "
         '--optypelist_for_implmode="Gelu,Sigmoid" --op_select_implmode=high_performance --soc_version=Ascend310P3', "sample:1,4,8,8"),
    Line("the same with its variable as it is", "--framework=5 --model=./m.onnx --output=./unet --soc_version=Ascend", "x:1,4", "unknown chip"),
    Line("ModelZoo-PyTorch Deepsort (yolov3)", "--model=./m.onnx --framework=5 --output=m --input_format=NCHW "
         '--input_shape="actual_input_1:1,3,416,416" --log=info --soc_version=Ascend310', "actual_input_1:1,3,416,416"),
    Line("ModelZoo-PyTorch Deepsort (deep)", f'--model=./m.onnx --framework=5 --output=m --input_format=ND --input_shape="actual_input_1:-1,3,8,4" '
         f'--dynamic_dims="{GEARS_50}" --log=info --soc_version=Ascend310', "actual_input_1:n,3,8,4"),
    Line("ModelZoo-PyTorch Wenet", '--model=m.onnx --framework=5 --output=m --input_format=ND --input_shape_range="xs_input:[1,1~1500,80]" '
         "--log=error --soc_version=Ascend310P3", "xs_input:1,t,80", "-C dynamic_ranges="),
    Line("ModelZoo-PyTorch EfficientNet", "--model=m.onnx --framework=5 --input_format=NCHW --input_shape='image:32,3,60,60' --output=e "
         "--soc_version=Ascend310P3 --log=error --optypelist_for_implmode=Sigmoid --op_select_implmode=high_performance", "image:n,3,60,60"),
    Line("ModelZoo-PyTorch, inputs and outputs in half precision", "--model=m.onnx --framework=5 --output=m_bs4 --input_format=NCHW "
         "--input_shape=input:4,3,8,8 --log=error --soc_version=Ascend310P3 --input_fp16_nodes=input --output_type=FP16", "input:n,3,8,8"),
    Line("ModelZoo-PyTorch pyramidbox", "--framework=5 --model=m.onnx --input_format=NCHW --input_shape=image:1,3,100,100 --output=p "
         "--log=debug --soc_version=Ascend310 --precision_mode=force_fp32", "image:1,3,100,100"),
    Line("resnet50 on a board", "--model=./m.onnx --framework=5 --output=./resnet50 --soc_version=Ascend310B4 --input_shape=input:1,3,8,8 "
         "--enable_small_channel=1", "input:1,3,8,8", chip_missing="Ascend310B4"),
    Line("ascend_community_projects insulatorDetection", "--output_type=FP32 --insert_op_conf=aipp.cfg --input_format=NCHW --framework=5 "
         "--model=./m.onnx --input_shape=input:1,3,416,416 --output=./insulator --soc_version=Ascend310 --enable_small_channel=1",
         "input:1,3,416,416"),
    Line("yolov5s sample", "--model=m.onnx --framework=5 --output=y --log=debug --soc_version=Ascend310 --input_shape=images:1,3,64,64 "
         '--out_nodes="Conv_277:0;Conv_261:0;Conv_245:0"', "images:1,3,64,64", "occ extract MODEL --to"),
    Line("yolov5 as AIR", "--framework=1 --model=yolov5.air --input_shape=x:1,12,32,32 --output=y --soc_version=Ascend310", "x:1,12,32,32",
         "export the model to ONNX"),
    Line("centerface, Caffe", "--model=c.prototxt --weight=c.caffemodel --framework=0 --output=c --soc_version=Ascend310", "x:1,3",
         "Caffe"),
    Line("ModelZoo-PyTorch Vgg19", "--model=m.onnx --framework=5 --output=v --input_format=NCHW --input_shape=actual_input_1:16,3,8,8 "
         "--enable_small_channel=1 --log=info --soc_version=Ascend310 --auto_tune_mode='RL,GA'", "actual_input_1:n,3,8,8"),
    Line("ModelZoo-PyTorch TinyBERT", "--input_format=ND --framework=5 --model=./m.onnx --input_shape='input_ids:1,64;segment_ids:1,64' "
         "--output=TinyBERT --auto_tune_mode='RL,GA' --log=info --soc_version=Ascend310 --precision_mode=allow_mix_precision "
         "--modify_mixlist=./ops_info.json", "input_ids:1,64;segment_ids:1,64"),
    Line("the same, with its out_nodes", "--framework=5 --model=./m.onnx --output=T --soc_version=Ascend310 --out_nodes='Gemm_423:0'", "x:1,4",
         "--outputs NAME"),
    Line("xformer encoder", "--model=m.onnx --framework=5 --output=x --input_format=ND --input_shape=feats:1,-1,80 --log=error "
         "--op_select_implmode=high_performance --optypelist_for_implmode=Sigmoid --soc_version=Ascend310P3", "feats:1,t,80"),
    Line("ppocr_angle_cls", "--model=m.onnx --framework=5 --output=p --soc_version=Ascend310P3 --input_shape=x:-1,3,48,192 "
         "--dynamic_dims='1;4;8;16;32' --input_format=ND", "x:n,3,48,192"),
    Line("PaddlePaddle/PaddleX#4824", "--model=m.onnx --framework=5 --output=inference --soc_version=Ascend310P3 --input_format=ND "
         "--input_shape=x:-1,3,48,-1 --dynamic_dims='1,160;1,320;8,3200'", "x:n,3,48,w"),
    Line("microsoft/onnxruntime#24498", "--model=m.onnx --framework=5 --output=rec --soc_version=Ascend310P3 --input_shape='x:1~6,3,48,-1'",
         "x:n,3,48,w"),
    Line("ultralytics#14183, wrong size", "--model=m.onnx --framework=5 --output=y --soc_version=Ascend310P3 --input_shape=images:1,3,640,640",
         "images:1,3,64,64", "export the model again with this size"),
    Line("ultralytics#14183, wrong name", "--model=m.onnx --framework=5 --output=y --soc_version=Ascend310P3 --input_shape=image:1,3,64,64",
         "images:1,3,64,64", "inputs: `images`"),
    Line("options that atc alone has", "--model=m.onnx --framework=5 --output=y --soc_version=Ascend310P3 --virtual_type=1 --aicore_num=4 "
         "--buffer_optimize=off_optimize --op_debug_level=0 --op_compiler_cache_mode=enable --op_compiler_cache_dir=cache --external_weight=1 "
         "--deterministic=1 --mdl_bank_path=bank --display_model_info=1 --is_input_adjust_hw_layout=false", "x:1,4"),
    Line("an option with a slip", "--model=m.onnx --framework=5 --output=y --soc_version=Ascend310P3 --output_tpye=FP16", "x:1,4", "`output_type`"),
]  # fmt: skip


def _model(inputs: str) -> onnx.ModelProto:
    """Rectifies each of its inputs."""
    ins, outs, nodes = [], [], []
    for k, item in enumerate(inputs.split(";")):
        name, _, extents = item.partition(":")
        shape = [int(e) if e.isdigit() else e for e in extents.split(",")]
        ins.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        outs.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, shape))
        nodes.append(helper.make_node("Relu", [name], [f"y{k}"], f"Relu_{k}"))
    graph = helper.make_graph(nodes, "g", ins, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _known(chip: str) -> bool:
    from occ.compiler.codegen_cann.options import SOCS

    return any(chip in chips for chips in SOCS.values())


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.source)
def test_a_line_is_taken_or_refused_with_the_remedy(line, tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    onnx.save(_model(line.inputs), "m.onnx")
    for name, text in _OWN.items():
        (tmp_path / name).write_text(text)
    ran = occ_cli("atc", *shlex.split(line.typed))
    told = " ".join(ran.err.split())
    assert "Traceback" not in ran.err
    refused = line.refused or ("unknown chip" if line.chip_missing and not _known(line.chip_missing) else "")
    if refused:
        assert ran.code == 2, told
        assert refused in told
        assert not list(tmp_path.glob("*.occ"))
        return
    assert ran.code == 0, told
    assert len(list(tmp_path.glob("*.occ"))) == 1
    assert "1 part with" in told
    assert "0 parts with 0 nodes" in told  # nothing on the CPU
