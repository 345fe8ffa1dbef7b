"""What vLLM looks like from inside, as one line of JSON: run by `interpreter.look_inside` in vLLM's own Python."""

import json

from dflash2_vllm.hooks import states
from dflash2_vllm.plugin import mode, runs_natively


def main() -> None:
    """Imports vLLM, changes nothing."""
    import vllm

    print(
        json.dumps(
            {"version": vllm.__version__, "native": runs_natively() and mode() != "on", "mode": mode(), "hooks": dict(states())}
        )
    )


if __name__ == "__main__":
    main()
