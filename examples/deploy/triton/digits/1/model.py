"""A model of Triton's Python backend, which runs the artifact next to it; docs/serving.md."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils

import occ


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.session = occ.load(os.path.join(folder, "model.occ"))
        self.inputs = [p.name for p in self.session.inputs]

    def execute(self, requests):
        given = [[pb_utils.get_input_tensor_by_name(r, n).as_numpy() for n in self.inputs] for r in requests]
        rows = np.cumsum([arrays[0].shape[0] for arrays in given])
        try:
            outputs = self.session.run(
                {n: np.concatenate(xs) for n, xs in zip(self.inputs, zip(*given, strict=True), strict=True)}
            )
        except occ.RunError as e:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(e))) for _ in requests]
        pieces = {n: np.split(y, rows[:-1]) for n, y in outputs.items()}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(n, p[k]) for n, p in pieces.items()])
            for k in range(len(requests))
        ]
