"""Generate the Python code of the gRPC contract, `src/outrider/rpc/target_inference_pb2*`.

    python scripts/generate_rpc.py [FOLDER]

Writes into the package, or under FOLDER. The test suite runs it to see that nothing has drifted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
NAME = "outrider/rpc/target_inference.proto"
"""The contract under the package's own path, so that the generated modules import each other."""


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src"
    return protoc.main(
        [
            "protoc",
            f"-Ioutrider/rpc={ROOT / 'proto'}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            NAME,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
