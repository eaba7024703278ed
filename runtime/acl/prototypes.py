"""Signatures, structures and enumerations of AscendCL, as data."""

from __future__ import annotations

import ctypes

from occ.runtime.element_types import ELEMENT_TYPES

MAX_DIMS = 128
MAX_NAME = 128
GEAR_INPUT = "ascend_mbatch_shape_data"  # the hidden input that selects the gear
ALL_INPUTS = 2**64 - 1  # (size_t)-1: gear queries are about the model, not about one input

HUGE_FIRST = 0  # aclrtMemMallocPolicy
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # aclrtMemcpyKind
DDR, HBM = 0, 1  # aclrtMemAttr
FORMAT_ND = 2

# aclDataType of the element types; equal to the number of ge::DataType.
DATA_TYPES = {t.name: t.acl for t in ELEMENT_TYPES.values() if t.acl is not None and t.kind != "s"}
DTYPE_OF = {number: name for name, number in DATA_TYPES.items()}
# Type names of `atc --singleop`: aclDataType and bytes.
SINGLE_OP_TYPES = {
    t.spelled: (DATA_TYPES[t.name], t.itemsize) for t in ELEMENT_TYPES.values() if t.ge and t.name in DATA_TYPES
}
FORMATS = {
    "NCHW": 0, "NHWC": 1, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4, "NC1HWC0_C04": 12, "HWCN": 16, "NDHWC": 27,
    "FRACTAL_NZ": 29, "NCDHW": 30, "NDC1HWC0": 32, "FRACTAL_Z_3D": 33, "NC": 35, "NCL": 47,
}  # fmt: skip


class IODims(ctypes.Structure):
    """aclmdlIODims."""

    _fields_ = (
        ("name", ctypes.c_char * MAX_NAME),
        ("count", ctypes.c_size_t),
        ("dims", ctypes.c_int64 * MAX_DIMS),
    )


class Batches(ctypes.Structure):
    """aclmdlBatch."""

    _fields_ = (("count", ctypes.c_size_t), ("values", ctypes.c_uint64 * 128))


class ImageSizes(ctypes.Structure):
    """aclmdlHW."""

    _fields_ = (("count", ctypes.c_size_t), ("values", (ctypes.c_uint64 * 2) * 128))


_TYPES = {
    "v": None, "p": ctypes.c_void_p, "s": ctypes.c_char_p, "i": ctypes.c_int32, "u": ctypes.c_uint32,
    "z": ctypes.c_size_t, "l": ctypes.c_int64, "L": ctypes.c_uint64, "f": ctypes.c_float, "b": ctypes.c_uint8,
}  # fmt: skip

# Result and parameters of each call by letter: i int32 (also aclError and enumerations), u uint32, l int64, L uint64, z
# size_t, f float, b uint8, s char *, p any other pointer, v void. Outputs are pointers.
_LETTERS = {
    # process and device
    "aclInit": "is", "aclFinalize": "i", "aclGetRecentErrMsg": "s", "aclrtGetSocName": "s",
    "aclrtGetDeviceCount": "ip", "aclrtGetRunMode": "ip", "aclrtSetDevice": "ii", "aclrtResetDevice": "ii",
    "aclrtCreateContext": "ipi", "aclrtDestroyContext": "ip", "aclrtSetCurrentContext": "ip",
    "aclrtGetCurrentContext": "ip",
    "aclrtCreateStream": "ip", "aclrtDestroyStream": "ip", "aclrtSynchronizeStream": "ip",
    "aclrtCreateEvent": "ip", "aclrtDestroyEvent": "ip", "aclrtRecordEvent": "ipp", "aclrtStreamWaitEvent": "ipp",
    # memory
    "aclrtMalloc": "ipzi", "aclrtFree": "ip", "aclrtMemcpy": "ipzpzi", "aclrtMemcpyAsync": "ipzpzip",
    "aclrtGetMemInfo": "iipp",
    # models
    "aclmdlLoadFromFileWithMem": "isppzpz", "aclmdlLoadFromMemWithMem": "ipzppzpz", "aclmdlUnload": "iu",
    "aclmdlQuerySize": "ispp", "aclmdlQuerySizeFromMem": "ipzpp",
    "aclmdlCreateDesc": "p", "aclmdlDestroyDesc": "ip", "aclmdlGetDesc": "ipu",
    "aclmdlGetNumInputs": "zp", "aclmdlGetNumOutputs": "zp",
    "aclmdlGetInputSizeByIndex": "zpz", "aclmdlGetOutputSizeByIndex": "zpz",
    "aclmdlGetInputDims": "ipzp", "aclmdlGetOutputDims": "ipzp", "aclmdlGetCurOutputDims": "ipzp",
    "aclmdlGetInputNameByIndex": "spz", "aclmdlGetOutputNameByIndex": "spz",
    "aclmdlGetInputDataType": "ipz", "aclmdlGetOutputDataType": "ipz",
    "aclmdlGetInputFormat": "ipz",
    "aclmdlGetDynamicBatch": "ipp", "aclmdlGetDynamicHW": "ipzp", "aclmdlGetInputDynamicGearCount": "ipzp",
    "aclmdlGetInputDynamicDims": "ipzpz",
    "aclmdlSetDynamicBatchSize": "iupzL", "aclmdlSetDynamicHWSize": "iupzLL", "aclmdlSetInputDynamicDims": "iupzp",
    "aclmdlCreateDataset": "p", "aclmdlDestroyDataset": "ip", "aclmdlAddDatasetBuffer": "ipp",
    "aclmdlSetDatasetTensorDesc": "ippz", "aclmdlGetDatasetTensorDesc": "ppz",
    "aclmdlExecute": "iupp", "aclmdlExecuteAsync": "iuppp",
    # tensors and single operators
    "aclCreateDataBuffer": "ppz", "aclDestroyDataBuffer": "ip",
    "aclCreateTensorDesc": "piipi", "aclDestroyTensorDesc": "vp", "aclGetTensorDescNumDims": "zp",
    "aclGetTensorDescDimV2": "ipzp", "aclSetTensorDynamicInput": "ips", "aclSetTensorConst": "ippz",
    "aclopLoad": "ipz", "aclopCreateAttr": "p", "aclopDestroyAttr": "vp",
    "aclopSetAttrBool": "ipsb", "aclopSetAttrInt": "ipsl", "aclopSetAttrFloat": "ipsf", "aclopSetAttrString": "ipss",
    "aclopSetAttrDataType": "ipsi", "aclopSetAttrListBool": "ipsip", "aclopSetAttrListInt": "ipsip",
    "aclopSetAttrListFloat": "ipsip", "aclopSetAttrListString": "ipsip",
    "aclopSetAttrListListInt": "ipsipp",
    "aclopExecuteV2": "isippipppp",
    # profiler
    "aclprofInit": "isz", "aclprofFinalize": "i", "aclprofCreateConfig": "ppuipL", "aclprofDestroyConfig": "ip",
    "aclprofStart": "ip", "aclprofStop": "ip",
}  # fmt: skip
PROTOTYPES = {name: (_TYPES[row[0]], [_TYPES[c] for c in row[1:]]) for name, row in _LETTERS.items()}
LIBRARIES = {"aclprof": "libmsprofiler.so"}  # by prefix of the call; everything else is in libascendcl.so
