"""What SGLang looks like from inside on a CPU, as one line of JSON: run by `interpreter.look_inside` in SGLang's own Python."""

import json
import os

from dflash2_sglang.cpu.standin import provide_sgl_kernel


def main() -> None:
    """Imports SGLang, changes nothing in it."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    kernels = provide_sgl_kernel()
    from dflash2_sglang import hooks

    print(json.dumps({"sgl_kernel": kernels, "hooks": hooks.states()}))


if __name__ == "__main__":
    main()
