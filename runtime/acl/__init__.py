"""Runs compiled models (`.om`) on an Ascend device through AscendCL, with ctypes.

    statuses.py    what each status means, and what to do about it
    prototypes.py  signatures, structures and enumerations of the calls used
    library.py     finds libascendcl.so; every call goes through it, and a failing one becomes a `RunError`
    owner.py       releases what was acquired, in reverse
    process.py     AscendCL is initialised once per process; sessions share devices
    device.py      one device: context, streams, copies, facts
    arena.py       device memory under a limit
    tensor.py      `DeviceTensor`: an array that stays on the device
    model.py       a loaded model: its inputs and outputs, and its gears
    launch.py      one execution of a model: datasets, gears, results
    singleop.py    operators one by one, from single-operator models
    profiling.py   the device's own profiler
    options.py     the options of a session
    atc.py         the offline compiler, `.air` -> `.om`

The C interface follows the public headers of CANN (`acl/acl.h` and its neighbours).
"""
